#include "train/run/train_recipe.h"

#include "recipe/fields_of.h"
#include "recipe/scalar.h"

namespace tandem::train {

void TrainRecipe::check(recipe::Problems& p) const {
  if (output.path == "-")
    p.field("output.path", "output.path: expected a folder for the run, found standard output");
  using enum Method;
  if (recipe::is_quantized(model.weights) && train.method != s2ft && train.method != lora &&
      train.method != dora)
    p.field("model.weights",
            "model.weights: needs train.method s2ft, lora or dora, which train next to frozen "
            "weights, found {}",
            recipe::yaml_text(train.method));
  const bool validates = data.val_size.has_value() || !data.val_path.empty();
  if (validates) return;
  const auto needs_data = [&](const char* key) {
    p.field(key, "{}: needs validation data, found none: set data.val_size or data.val_path", key);
  };
  if (eval.every) needs_data("eval.every");
  if (eval.patience > 0) needs_data("eval.patience");
}

}  // namespace tandem::train

template tandem::recipe::Field tandem::recipe::fields_of(tandem::train::TrainRecipe&);
