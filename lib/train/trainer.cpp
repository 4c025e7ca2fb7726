#include "train/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tandem::train {
namespace {

constexpr const char* kBuffers[] = {"optimizer/gradient", "optimizer/values", "optimizer/first",
                                    "optimizer/second"};

constexpr const char* kStart = "optimizer/start";

std::span<float> take(Arena& arena, const char* name) {
  const PlanItem* planned = arena.plan().find(name);
  if (planned == nullptr) return {};
  return {static_cast<float*>(arena.take(name)), planned->bytes / sizeof(float)};
}

}  // namespace

model::Llama::Options TrainerSpec::model_options(const model::Trainable& trainable) const {
  return {.dtype = dtype,
          .max_rows = max_rows,
          .max_logit_rows = std::min(head_rows, max_rows),
          .max_position = max_rows,
          .interrupted = interrupted,
          .trainable = trainable};
}

kv::Cache::Spec TrainerSpec::cache() const {
  // A document ends in a separate page, one more than its tokens fill; the cache has two for each
  // sequence, the second for a copy of one that forks.
  const int64_t total = std::max<int64_t>(1, max_rows - int64_t{max_documents} * kPageTokens);
  return {.geometry = model::geometry_of(config, dtype),
          .max_seqs = max_documents,
          .max_tokens = max_rows,
          .total_tokens = max_documents > 1 ? total : max_rows,
          .max_rows = max_rows,
          .policies = {recipe::Cache{}}};
}

int64_t n_supervised(std::span<const MicroBatch> batches) {
  int64_t n = 0;
  for (const MicroBatch& b : batches)
    n += std::ranges::count_if(b.targets, [](int32_t t) { return t >= 0; });
  return n;
}

MemoryPlan Trainer::plan(const TrainerSpec& spec, const TrainedSet& set) {
  MemoryPlan plan;
  model::Llama::plan(spec.config, spec.model_options(set.trainable()), plan);
  kv::Cache::plan(spec.cache(), plan);
  Backward::plan(spec.backward(), set, plan);
  const size_t bytes = static_cast<size_t>(set.size) * sizeof(float);
  for (const char* name : kBuffers) plan.add(name, bytes);
  if (spec.keeps_start()) plan.add(kStart, bytes);
  return plan;
}

Recomputation Trainer::least_recompute(TrainerSpec spec, const TrainedSet& set, size_t bytes) {
  for (const Recomputation level : {Recomputation::light, Recomputation::ffn}) {
    spec.recompute = level;
    if (plan(spec, set).peak({}) <= bytes) return level;
  }
  return Recomputation::layer;
}

Trainer::Trainer(const TrainerSpec& spec, TrainedSet set,
                 std::unique_ptr<model::WeightSource> source,
                 const std::function<void(double share)>& on_load)
    : spec_(spec),
      set_(std::move(set)),
      arena_(plan(spec_, set_)),
      model_(spec_.config, spec_.model_options(set_.trainable()), std::move(source), arena_,
             on_load),
      cache_(spec_.cache(), arena_, model_.rope()),
      backward_(spec_.backward(), set_, model_, cache_, arena_),
      gradient_(take(arena_, kBuffers[0])),
      start_(take(arena_, kStart)),
      state_{.values = take(arena_, kBuffers[1]),
             .first = take(arena_, kBuffers[2]),
             .second = take(arena_, kBuffers[3])} {
  read_values(state_.values, set_, model_.weights());
  std::ranges::copy(std::span(state_.values).first(start_.size()), start_.begin());
}

LossSum Trainer::run(std::span<const MicroBatch> batches, std::span<float> gradient) {
  LossSum loss{.n_tokens = n_supervised(batches)};
  if (loss.n_tokens == 0) return loss;
  const float scale = 1.0f / static_cast<float>(loss.n_tokens);
  for (const MicroBatch& b : batches) loss.sum += backward_.run(b, scale, gradient);
  return loss;
}

LossSum Trainer::gradients(std::span<const MicroBatch> batches) {
  std::ranges::fill(gradient_, 0.0f);
  return run(batches, gradient_);
}

LossSum Trainer::loss(std::span<const MicroBatch> batches) { return run(batches, {}); }

StepResult Trainer::step(std::span<const MicroBatch> batches) {
  StepResult result{.loss = gradients(batches), .rate = spec_.schedule.at(state_.steps)};
  for (const MicroBatch& b : batches) result.n_rows += static_cast<int64_t>(b.tokens.size());
  result.gradient_norm = std::sqrt(ops::square_sum(gradient_));
  result.skipped = result.loss.n_tokens == 0 || !std::isfinite(result.loss.sum) ||
                   !std::isfinite(result.gradient_norm);
  if (result.skipped) return result;
  constexpr double kTiny = 1e-6;  // as PyTorch clips
  if (spec_.clip > 0)
    result.clip_scale = std::min(1.0, spec_.clip / (result.gradient_norm + kTiny));
  ops::AdamW by = spec_.optimizer;
  by.learning_rate = static_cast<float>(result.rate);
  ++state_.steps;
  ops::adamw({.weights = state_.values,
              .first = state_.first,
              .second = state_.second,
              .gradient = gradient_,
              .base = start_},
             by, state_.steps, static_cast<float>(result.clip_scale));
  publish();
  return result;
}

void Trainer::publish() { write_values(model_.weights(), set_, state_.values); }

}  // namespace tandem::train
