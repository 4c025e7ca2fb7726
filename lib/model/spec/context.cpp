#include "model/spec/context.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::model {

int context_of(const recipe::Run& run, const ModelConfig& config, int64_t n_decoded) {
  const bool asked = run.context > 0;
  const int64_t limit = (asked && !config.trained ? kMaxContext : config.max_context) - n_decoded;
  const int64_t context = asked ? run.context.value : limit;
  if (context >= 1 && context <= limit) return static_cast<int>(context);
  const std::string decoded =
      n_decoded > 0 ? fmt::format(" plus {} decoded tokens", n_decoded) : std::string();
  throw recipe_error("run.context", "is {} tokens{}, but {} supports {}",
                     std::max<int64_t>(context, 0), decoded, config.name, config.max_context)
      .hint(fmt::format("lower run.context{}, choose a model with a longer context, or raise {}{} "
                        "if the model was trained for more",
                        n_decoded > 0 ? " or the number of decoded tokens" : "", config.context_key,
                        config.context_key == ModelConfig{}.context_key ? " in config.json" : ""));
}

std::string context_note(const ModelConfig& config) {
  if (config.max_context == config.stated_context) return {};
  const ops::RopeScaling& s = config.ropes.front().scaling;
  const bool yarn = s.kind == RopeScalingKind::yarn;
  return fmt::format("context  {} = {} x {} by {} ({} of {}: {})", config.max_context, s.factor,
                     yarn ? s.original_context : config.stated_context,
                     yarn ? "YaRN" : "linear scaling", config.context_key, config.name,
                     config.stated_context);
}

bool reads_any_length(const ModelConfig& config, const recipe::Cache& cache,
                      const std::string& where) {
  const std::optional<int64_t> reach = cache.reach();
  if (reach && config.trained && *reach > config.max_context)
    throw recipe_error(where, "sinks and recent are {} tokens, but {} supports {}", *reach,
                       config.name, config.max_context)
        .hint("lower recent");
  return reach.has_value();
}

}  // namespace tandem::model
