#include "train/data/settings.h"

#include "recipe/fields_of.h"
#include "recipe/value_of.h"
#include "train/data/prompt_template.h"

namespace tandem::train {

void DataSettings::check(recipe::Problems& p) const {
  if (!val_path.empty() && val_size)
    p.field("val_size",
            "data.val_size: {} samples of data.path, but data.val_path names a file: set one of "
            "the two",
            *val_size);
  const bool written = !own.prompt.empty() || !own.prompt_with_input.empty();
  if (template_name != TemplateName::own && written)
    p.field("own", "data.own is set, but data.template is {}: set data.template: own",
            recipe::yaml_text(template_name));
  if (template_name != TemplateName::own) return;
  if (own.prompt.empty())
    p.field("own.prompt", "data.own.prompt is not set, which data.template own needs");
  const auto check_text = [&](const char* key, const std::string& text) {
    if (const std::string problem = template_problem(text); !problem.empty())
      p.field(std::string("own.") + key, "data.own.{}: {}", key, problem);
  };
  check_text("prompt", own.prompt);
  check_text("prompt_with_input", own.prompt_with_input);
  check_text("answer", own.answer);
  if (own.answer.find("{output}") == std::string::npos)
    p.field("own.answer", "data.own.answer: {{output}} is missing, so no answer would be learned");
}

void BatchSettings::check(recipe::Problems& p) const {
  if (micro_tokens < max_tokens)
    p.field("micro_tokens",
            "train.micro_tokens: {} tokens do not hold a sample of train.max_tokens, {}: raise the "
            "first or lower the second",
            micro_tokens.value, max_tokens.value);
}

}  // namespace tandem::train
