#include "train/run/trainer_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "recipe/scalar.h"

namespace tandem::train {
namespace {

/// auto is the fastest; least_recompute chooses another where that does not fit.
Recomputation recomputation_of(RecomputeLevel level) {
  switch (level) {
    case RecomputeLevel::light:
      return Recomputation::light;
    case RecomputeLevel::ffn:
      return Recomputation::ffn;
    case RecomputeLevel::layer:
      return Recomputation::layer;
    default:
      return Recomputation::none;
  }
}

Schedule schedule_of(const TrainSettings& t, int64_t steps) {
  using Kind = Schedule::Kind;
  const ScheduleSettings& s = t.schedule;
  return {.kind = s.kind == ScheduleKind::cosine     ? Kind::cosine
                  : s.kind == ScheduleKind::constant ? Kind::constant
                                                     : Kind::linear,
          .rate = t.optimizer.lr_of(t.method),
          .warmup_steps = s.warmup_of(steps),
          .steps = steps,
          .from_zero = s.warmup_from_zero,
          .least_share = s.min_lr_ratio.value};
}

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

TrainerSpec trainer_spec(const TrainRecipe& recipe, const model::ModelConfig& config,
                         const TrainingData& data, int64_t n_steps, const decode::Placement& place,
                         const decode::RunContext& run) {
  const TrainSettings& t = recipe.train;
  const auto longest =
      static_cast<int64_t>(std::max(data.data.longest_rows(), data.val_data.longest_rows()));
  const int64_t most = t.batches.most_samples();
  const int64_t rows = std::max(longest, std::min(t.batches.micro_tokens.value, longest * most));
  const OptimizerSettings& o = t.optimizer;
  const bool to_start = o.weight_decay_target == DecayTarget::delta;
  if (!to_start && o.weight_decay > 0 && t.method == Method::full && config.norms().unit_offset)
    throw recipe_error("train.optimizer.weight_decay_target",
                       "'weight' would decay this model's norms, 1 + weight, to 0 instead of 1")
        .hint("set it to 'delta', or train.optimizer.weight_decay to 0");
  const bool on_gpu = place.device.kind == Device::Kind::cuda;
  return {.config = config,
          .dtype = recipe.model.compute == recipe::Compute::f32 ? DType::f32 : DType::bf16,
          .max_rows = static_cast<int>(rows),
          .longest = static_cast<int>(longest),
          .max_documents = static_cast<int>(std::min(most, rows)),
          .schedule = schedule_of(t, n_steps),
          .optimizer = {.beta1 = static_cast<float>(o.betas[0]),
                        .beta2 = static_cast<float>(o.betas[1]),
                        .epsilon = static_cast<float>(o.eps),
                        .weight_decay = static_cast<float>(o.weight_decay)},
          .decays_to_start = to_start,
          .clip = o.clip,
          .recompute = recomputation_of(t.recompute),
          .narrow_states = o.states == StateType::bf16,
          .rounding_seed = o.rounds_stochastically()
                               ? std::optional(static_cast<uint64_t>(recipe.run.seed))
                               : std::nullopt,
          .interrupted = [&run] { return run.is_interrupted(); },
          .device = place.device,
          .multiprocessors = place.plan_for ? place.plan_for->multiprocessors
                             : on_gpu       ? cuda::gpu_of(place.device.index).multiprocessors
                                            : 0};
}

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
