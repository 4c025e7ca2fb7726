#include "target.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const auto tokenizer = text::tokenizer_from_json(fuzz::as_text(data, size), {}, "fuzz");
    const auto ids = tokenizer->encode("Hello wor1d, h\u00e9!\n");
    tokenizer->decode(ids);
  });
}
