// Prompt ids (a JSON array) and lines of a JSONL batch, as pig-generate reads them for a model that
// has a tokenizer and a chat template.
#include "decode/prompts.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "source_dir.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const decode::ModelFiles model =
      decode::open_model(test::source_dir() / "recipes/models/tiny-2m", 0);
  const std::string_view text = fuzz::as_text(data, size);
  return fuzz::run(ErrorKind::input, [&] {
    if (text.starts_with("["))
      decode::parse_ids(text, model.config.vocab_size, "fuzz");
    else
      io::for_each_ordered_jsonl(text, "fuzz",
                                 [](const io::OrderedJson& line, const std::string& where) {
                                   decode::parse_prompt(line, model, where);
                                 });
  });
}
