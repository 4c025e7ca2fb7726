#include "target.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const char* const classes[] = {"", "LlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer"};
    text::TokenizerConfig config;
    config.tokenizer_class = classes[size % 4];
    config.add_prefix_space = size % 3 == 0;
    const auto tokenizer = text::tokenizer_from_json(fuzz::as_text(data, size), config, "fuzz");
    const auto ids = tokenizer->encode("Hello wor1d, h\u00e9!\n");
    tokenizer->decode(ids);
  });
}
