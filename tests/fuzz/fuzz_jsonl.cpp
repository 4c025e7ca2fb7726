#include "io/json.h"
#include "io/jsonl.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    io::for_each_jsonl(fuzz::as_text(data, size), "fuzz",
                       [](const io::Json& value, const std::string&) {
                         // What is written must be read back as the same value.
                         if (io::parse_json(io::jsonl_line(value), "again") != value)
                           throw std::logic_error("a value that does not survive its own line");
                       });
  });
}
