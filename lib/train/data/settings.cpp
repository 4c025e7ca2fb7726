#include "train/data/settings.h"

#include "recipe/fields_of.h"
#include "recipe/value_of.h"
#include "train/data/prompt_template.h"

namespace tandem::train {

void DataSettings::check(recipe::Problems& p) const {
  if (!val_path.empty() && val_size)
    p.field("val_size",
            "data.val_size: is {}, but data.val_path names a file: set only one of them",
            *val_size);
  const bool written = !own.prompt.empty() || !own.prompt_with_input.empty();
  if (template_name != TemplateName::own && written)
    p.field("own", "data.own needs data.template own, found {}: set it",
            recipe::yaml_text(template_name));
  if (template_name != TemplateName::own) return;
  if (own.prompt.empty())
    p.field("own.prompt", "data.template own needs data.own.prompt, which is not set");
  const auto check_text = [&](const char* key, const std::string& text) {
    if (const std::string problem = template_problem(text); !problem.empty())
      p.field(std::string("own.") + key, "data.own.{}: {}", key, problem);
  };
  check_text("prompt", own.prompt);
  check_text("prompt_with_input", own.prompt_with_input);
  check_text("answer", own.answer);
  if (own.answer.find("{output}") == std::string::npos)
    p.field("own.answer",
            "data.own.answer: expected {{output}} in the text, or no answer is learned");
}

void BatchSettings::check(recipe::Problems& p) const {
  if (micro_tokens < max_tokens)
    p.field("micro_tokens",
            "train.micro_tokens: {} is less than train.max_tokens, {}: raise the first or lower "
            "the second",
            micro_tokens.value, max_tokens.value);
}

}  // namespace tandem::train
