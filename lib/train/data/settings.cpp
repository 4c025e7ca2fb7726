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
  const bool written = !custom.prompt.empty() || !custom.prompt_with_input.empty();
  if (template_name != TemplateName::custom && written)
    p.field("custom", "data.custom needs data.template custom, found {}: set it",
            recipe::yaml_text(template_name));
  if (template_name != TemplateName::custom) return;
  if (custom.prompt.empty())
    p.field("custom.prompt", "data.template custom needs data.custom.prompt, which is not set");
  const auto check_text = [&](const char* key, const std::string& text) {
    if (const std::string problem = template_problem(text); !problem.empty())
      p.field(std::string("custom.") + key, "data.custom.{}: {}", key, problem);
  };
  check_text("prompt", custom.prompt);
  check_text("prompt_with_input", custom.prompt_with_input);
  check_text("answer", custom.answer);
  if (custom.answer.find("{output}") == std::string::npos)
    p.field("custom.answer",
            "data.custom.answer: expected {{output}} in the text, or no answer is learned");
}

void BatchSettings::check(recipe::Problems& p) const {
  if (micro_tokens < max_tokens)
    p.field("micro_tokens",
            "train.micro_tokens: {} is less than train.max_tokens, {}: raise the first or lower "
            "the second",
            micro_tokens.value, max_tokens.value);
}

}  // namespace tandem::train
