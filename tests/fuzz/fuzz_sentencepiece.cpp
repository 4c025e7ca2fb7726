#include <numeric>

#include "target.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

// The library reads the same file with and without a space in front of each part, and encodes a
// text that holds every piece of the file: only that follows its tables to their ends.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    text::TokenizerConfig config;
    config.legacy = size % 2 == 0;
    if (size % 3 == 0) config.tokenizer_class = "LlamaTokenizer";
    config.added = {{.content = "<pad>", .id = 300}, {.content = "lo", .id = 6}};
    const auto tokenizer =
        text::tokenizer_from_sentencepiece(fuzz::as_text(data, size), config, "fuzz");
    std::vector<int32_t> ids(static_cast<size_t>(tokenizer->vocab_size()) + 2);
    std::iota(ids.begin(), ids.end(), -1);
    const std::string text = "Hello wor1d, h\u00e9!\n" + tokenizer->decode(ids);
    for (const bool parse_special : {true, false}) {
      ids = tokenizer->encode(text, {.parse_special = parse_special});
      for (const int32_t id : ids)
        if (id < 0 || id >= tokenizer->vocab_size())
          throw std::logic_error("an id outside the vocabulary");
      tokenizer->decode(ids);
    }
  });
}
