#include "target.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

// The two files in one input: vocab.json, a zero byte, merges.txt.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const std::string_view both = fuzz::as_text(data, size);
    const size_t zero = std::min(both.find('\0'), both.size());
    text::TokenizerConfig config;
    config.tokenizer_class = size % 2 == 0 ? "GPT2Tokenizer" : "Qwen2Tokenizer";
    config.add_prefix_space = size % 3 == 0;
    const auto tokenizer = text::tokenizer_from_vocab_merges(
        both.substr(0, zero), both.substr(std::min(zero + 1, both.size())), config, "fuzz");
    const auto ids = tokenizer->encode("Hello wor1d, h\u00e9!\n");
    tokenizer->decode(ids);
  });
}
