#include "train/run/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::train {
namespace {

TrainerSpec with_rows(TrainerSpec spec, int64_t rows) {
  spec.max_rows = static_cast<int>(rows);
  spec.max_documents = std::min(spec.max_documents, spec.max_rows);
  return spec;
}

/// The most rows of a micro-batch in [least, most] that fit; 0 if none do. More rows need more.
int64_t most_rows(const TrainerSpec& spec, int64_t least, int64_t most,
                  const std::function<bool(const TrainerSpec&)>& fits) {
  if (least > most || !fits(with_rows(spec, least))) return 0;
  int64_t low = least, high = most + 1;  // low fits
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (fits(with_rows(spec, middle)) ? low : high) = middle;
  }
  return low;
}

/// The level's name in a recipe.
int number_of(Recomputation level) { return static_cast<int>(level); }

}  // namespace

std::string memory_advice(const TrainerSpec& spec, int64_t longest, int64_t max_tokens,
                          bool may_narrow, const std::function<bool(const TrainerSpec&)>& fits) {
  TrainerSpec other = spec;
  for (const Recomputation level :
       {Recomputation::light, Recomputation::ffn, Recomputation::layer}) {
    if (level <= spec.recompute) continue;
    other.recompute = level;
    if (fits(other)) return fmt::format("it fits with train.recompute: {}", number_of(level));
  }
  // Samples are of train.max_tokens at most, and a micro-batch holds each of them.
  const auto sizes = [&](int64_t tokens) {
    return tokens >= max_tokens
               ? fmt::format("train.micro_tokens: {}", tokens)
               : fmt::format("train.micro_tokens: {0} and train.max_tokens: {0}", tokens);
  };
  const int64_t least = longest + 1;  // tokens of the longest sample
  if (const int64_t tokens = most_rows(spec, least, spec.max_rows, fits); tokens > 0)
    return fmt::format("it fits with {}", sizes(tokens));
  other.recompute = Recomputation::layer;
  std::string with = spec.recompute == Recomputation::layer ? "" : "train.recompute: 3 and ";
  if (const int64_t tokens = most_rows(other, least, spec.max_rows, fits); tokens > 0)
    return fmt::format("it fits with {}{}", with, sizes(tokens));
  if (may_narrow) {  // from here on the result is another
    const std::string states = "train.optimizer.states: bf16";
    TrainerSpec narrowed = spec;
    narrowed.narrow_states = other.narrow_states = true;
    if (fits(narrowed)) return fmt::format("it fits with {}", states);
    if (fits(other)) return fmt::format("it fits with {}{}", with, states);
    with += states + " and ";
    if (const int64_t tokens = most_rows(other, least, spec.max_rows, fits); tokens > 0)
      return fmt::format("it fits with {}{}", with, sizes(tokens));
  }
  if (const int64_t tokens = most_rows(other, 2, longest, fits); tokens > 0)
    return fmt::format("it fits with {}{}, which cuts samples", with, sizes(tokens));
  const bool on_gpu = spec.device.kind == Device::Kind::cuda;
  return fmt::format(
      "it does not fit at any sample or micro-batch size: train fewer values, choose a smaller "
      "model, or raise run.{}_memory_limit",
      on_gpu ? "gpu" : "host");
}

}  // namespace tandem::train
