// A template of a recipe: any text is either refused or filled in, with the answer where it stands.
#include "source_dir.h"
#include "target.h"
#include "train/data/prompt_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  using namespace tandem;
  static const auto tokenizer = text::load_tokenizer(test::source_dir() / "recipes/models/tiny-2m");
  const std::string text(fuzz::as_text(input, size));
  return fuzz::run(ErrorKind::input, [&] {
    const std::string problem = train::template_problem(text);
    fuzz::check_message(problem);
    if (!problem.empty()) return;
    train::DataSettings settings;
    settings.template_name = train::TemplateName::custom;
    settings.custom = {.prompt = text, .prompt_with_input = "", .answer = "{output}{eos}"};
    const train::RecordWriter writer(settings, *tokenizer, {}, {});
    const text::RenderedChat written =
        writer.write({train::Instruction{"{input}", "", "{instruction}"}, "fuzz"});
    if (written.answers.size() != 1 || written.answers[0].end != written.text.size() ||
        !std::string_view(written.text)
             .substr(written.answers[0].begin)
             .starts_with("{instruction}"))
      throw std::logic_error("an answer that is not where the template has it");
  });
}
