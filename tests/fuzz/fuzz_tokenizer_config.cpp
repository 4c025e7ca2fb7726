#include "target.h"
#include "text/tokenizer_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const std::string_view text = fuzz::as_text(data, size);
    text::TokenizerConfig config = text::parse_tokenizer_config(text, "fuzz");
    text::merge_special_tokens_map(config, text, "fuzz");
  });
}
