// Prompt ids (a JSON array) and lines of a JSONL batch, as pig-generate reads them.
#include "decode/prompts.h"
#include "io/jsonl.h"
#include "state_model.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const std::string_view text = fuzz::as_text(data, size);
  return fuzz::run(ErrorKind::input, [&] {
    if (text.starts_with("["))
      decode::parse_ids(text, fuzz::state_model().config.vocab_size, "fuzz");
    else
      io::for_each_jsonl(text, "fuzz", [](const io::Json& line, const std::string& where) {
        decode::parse_prompt(line, fuzz::state_model(), where);
      });
  });
}
