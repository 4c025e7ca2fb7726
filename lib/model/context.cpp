#include "model/context.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::model {

int context_of(const recipe::Run& run, const ModelConfig& config, int64_t n_decoded) {
  const bool asked = run.context > 0;
  const int64_t limit = (asked && !config.trained ? kMaxContext : config.max_context) - n_decoded;
  const int64_t context = asked ? run.context.value : limit;
  if (context >= 1 && context <= limit) return static_cast<int>(context);
  const std::string decoded =
      n_decoded > 0 ? fmt::format(" and {} decoded ones", n_decoded) : std::string();
  throw recipe_error("run.context", "{} tokens{}, but {} was made for {}",
                     std::max<int64_t>(context, 0), decoded, config.name, config.max_context)
      .hint(fmt::format("lower run.context{}, or choose a model with a longer context",
                        n_decoded > 0 ? " or the number of decoded tokens" : ""));
}

bool reads_any_length(const ModelConfig& config, const recipe::Cache& cache, const char* where) {
  const std::optional<int64_t> reach = cache.reach();
  if (reach && config.trained && *reach > config.max_context)
    throw recipe_error(where, "sinks and recent are {} tokens, but {} was made for {}", *reach,
                       config.name, config.max_context)
        .hint("lower recent");
  return reach.has_value();
}

}  // namespace tandem::model
