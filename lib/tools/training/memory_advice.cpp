#include "tools/training/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::tools {
namespace {

using train::Recomputation;
using train::TrainerSpec;

constexpr int64_t kRowStep = 16;  // sizes that are tried

TrainerSpec with_rows(TrainerSpec spec, int64_t rows) {
  spec.max_rows = static_cast<int>(rows);
  spec.max_documents = std::min(spec.max_documents, spec.max_rows);
  return spec;
}

/// The most rows of a micro-batch in [least, most] that fit; 0 if none do. More rows need more.
int64_t most_rows(const TrainerSpec& spec, int64_t least, int64_t most,
                  const std::function<bool(const TrainerSpec&)>& fits) {
  if (least > most || !fits(with_rows(spec, least))) return 0;
  int64_t low = least, high = most;  // low fits
  while (high - low > kRowStep) {
    const int64_t middle = (low + high) / 2;
    (fits(with_rows(spec, middle)) ? low : high) = middle;
  }
  return low;
}

/// The level's name in a recipe.
int number_of(Recomputation level) {
  return level == Recomputation::layer ? 3 : level == Recomputation::ffn ? 2 : 1;
}

}  // namespace

std::string memory_advice(const TrainerSpec& spec, int64_t longest,
                          const std::function<bool(const TrainerSpec&)>& fits) {
  TrainerSpec other = spec;
  for (const Recomputation level : {Recomputation::ffn, Recomputation::layer}) {
    if (level <= spec.recompute) continue;
    other.recompute = level;
    if (fits(other)) return fmt::format("it fits with train.recompute: {}", number_of(level));
  }
  if (const int64_t rows = most_rows(spec, longest, spec.max_rows, fits); rows > 0)
    return fmt::format("it fits with train.micro_tokens: {}, which changes no result", rows);
  other.recompute = Recomputation::layer;
  const std::string again = spec.recompute == Recomputation::layer ? "" : "train.recompute: 3 and ";
  if (const int64_t rows = most_rows(other, longest, spec.max_rows, fits); rows > 0)
    return fmt::format("it fits with {}train.micro_tokens: {}, which change no result", again,
                       rows);
  // A sample of n tokens has n - 1 rows.
  if (const int64_t rows = most_rows(other, 2, longest, fits); rows > 0)
    return fmt::format("it fits with {}train.max_tokens and train.micro_tokens: {}", again,
                       rows + 1);
  return "no size of samples or micro-batches makes it fit: train fewer values, choose a smaller "
         "model, or raise run.host_memory_limit";
}

}  // namespace tandem::tools
