#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "tensor/comm.h"

namespace tandem::train {
namespace {

constexpr const char* kGradient = "optimizer/gradient";
constexpr const char* kValues = "optimizer/values";
constexpr const char* kHeld = "weights/trained parts of codes";
constexpr const char* kFirst = "optimizer/first";
constexpr const char* kSecond = "optimizer/second";
constexpr const char* kStart = "optimizer/start";
constexpr const char* kSquares = "optimizer/square sums";

/// Values whose moments one rank has: whole cache lines.
size_t part_size(const TrainerSpec& spec, const TrainedSet& set) {
  const auto n = static_cast<size_t>(set.size);
  if (!spec.divides_moments()) return n;
  constexpr size_t kLine = 16;
  const size_t lines = (n + kLine - 1) / kLine, ranks = static_cast<size_t>(spec.n_ranks);
  return (lines + ranks - 1) / ranks * kLine;
}

template <class T>
std::span<T> take(Arena& arena, const char* name, bool wanted = true) {
  const PlanItem* planned = arena.plan().find(name);
  if (planned == nullptr || !wanted) return {};
  return {static_cast<T*>(arena.take(name)), planned->bytes / sizeof(T)};
}

}  // namespace

double Schedule::at(int64_t done) const {
  if (done < warmup_steps)
    return rate * static_cast<double>(from_zero ? done : done + 1) /
           static_cast<double>(warmup_steps);
  const auto rest = static_cast<double>(std::max<int64_t>(1, steps - warmup_steps));
  const double past = std::min(1.0, static_cast<double>(done - warmup_steps) / rest);
  double left = 1;
  if (kind == Kind::linear) left = 1 - past;
  if (kind == Kind::cosine) left = 0.5 * (1 + std::cos(std::numbers::pi * past));
  return rate * (least_share + (1 - least_share) * left);
}

model::Transformer::Options TrainerSpec::model_options(const model::Trainable& trainable) const {
  return {.dtype = dtype,
          .max_rows = max_rows,
          .max_logit_rows = std::min(head_rows, max_rows),
          .max_position = max_rows,
          .longest = longest,
          .interrupted = interrupted,
          .device = device,
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
          .max_extend_rows = 1,  // there are none
          .policies = {recipe::Cache{}},
          .device = device,
          .multiprocessors = multiprocessors};
}

int64_t n_supervised(std::span<const MicroBatch> batches) {
  int64_t n = 0;
  for (const MicroBatch& b : batches)
    n += std::ranges::count_if(b.targets, [](int32_t t) { return t >= 0; });
  return n;
}

MemoryPlan Trainer::plan(const TrainerSpec& spec, const TrainedSet& set) {
  MemoryPlan plan;
  model::Transformer::plan(spec.config, spec.model_options(set.trainable()), plan);
  kv::Cache::plan(spec.cache(), plan);
  Backward::plan(spec.backward(), set, plan);
  const size_t bytes = static_cast<size_t>(set.size) * sizeof(float);
  const size_t part = part_size(spec, set) * sizeof(float);
  const size_t of_moment = spec.narrow_states ? bytes / 2 : part;
  plan.add(kGradient, bytes, spec.device);
  // Of several ranks in parts of one size.
  if (!spec.narrow_states)
    plan.add(kValues, spec.divides_moments() ? part * static_cast<size_t>(spec.n_ranks) : bytes,
             spec.device);
  if (const size_t held = held_bytes(set, spec.config, spec.dtype); held > 0)
    plan.add(kHeld, held, spec.device);
  plan.add(kFirst, of_moment, spec.device);
  plan.add(kSecond, of_moment, spec.device);
  if (spec.keeps_start()) plan.add(kStart, bytes, spec.device);
  if (spec.device.kind == Device::Kind::cuda)
    plan.add(
        kSquares,
        static_cast<size_t>(ops::square_sum_parts(static_cast<size_t>(set.size))) * sizeof(double),
        spec.device);
  return plan;
}

Recomputation Trainer::least_recompute(TrainerSpec spec, const TrainedSet& set, size_t bytes) {
  for (const Recomputation level :
       {Recomputation::none, Recomputation::light, Recomputation::ffn}) {
    spec.recompute = level;
    if (plan(spec, set).peak(spec.device) <= bytes) return level;
  }
  return Recomputation::layer;
}

int64_t Trainer::own_values(const TrainerSpec& spec, const TrainedSet& set) {
  return static_cast<int64_t>(part_size(spec, set));
}

Trainer::Trainer(const TrainerSpec& spec, TrainedSet set,
                 std::unique_ptr<model::WeightSource> source,
                 const std::function<void(double share)>& on_load)
    : spec_(spec),
      set_(std::move(set)),
      queue_(spec.device.kind == Device::Kind::cuda
                 ? std::make_unique<cuda::Queue>(spec.device.index)
                 : nullptr),
      exec_{queue_.get()},
      arena_(plan(spec_, set_)),
      model_(spec_.config, spec_.model_options(set_.trainable()), std::move(source), arena_,
             on_load, exec_),
      cache_(spec_.cache(), arena_, model_.ropes(), exec_),
      backward_(spec_.backward(), set_, model_, cache_, arena_, exec_),
      gradient_(take<float>(arena_, kGradient)),
      start_(take<float>(arena_, kStart)),
      part_size_(part_size(spec_, set_)),
      state_{.values = take<float>(arena_, kValues),
             .first = take<float>(arena_, kFirst, !spec.narrow_states),
             .second = take<float>(arena_, kSecond, !spec.narrow_states),
             .narrow_first = take<bf16>(arena_, kFirst, spec.narrow_states),
             .narrow_second = take<bf16>(arena_, kSecond, spec.narrow_states)} {
  if (spec_.narrow_states)
    each_matrix(set_, [](const TrainedMatrix& m) {
      TANDEM_CHECK(!m.listed(), "bf16 states of a part of a matrix are not supported");
    });
  TANDEM_CHECK(spec_.n_ranks == (spec_.comm ? spec_.comm->size() : 1),
               "the communicator does not have {} ranks", spec_.n_ranks);
  if (spec_.comm)
    sum_ = std::make_unique<GradientSum>(spec_.comm, gradient_buckets(set_, spec_.summed_at_once),
                                         queue_.get());
  const auto n = static_cast<size_t>(set_.size);
  if (spec_.divides_moments())
    own_first_ = std::min(n, part_size_ * static_cast<size_t>(spec_.comm->rank()));
  own_size_ = std::min(part_size_, n - own_first_);
  if (!spec_.narrow_states) {  // without what evens parts out
    state_.values = state_.values.first(n);
    state_.first = state_.first.first(own_size_);
    state_.second = state_.second.first(own_size_);
  }
  if (void* const held = arena_.plan().find(kHeld) ? arena_.take(kHeld) : nullptr)
    hold_values(model_.weights(), set_, backward_.indices(), held, exec_.stream());
  if (exec_.on_gpu()) square_sums_ = static_cast<double*>(arena_.take(kSquares));
  for (const std::span<float> to : {state_.values, start_})
    if (!to.empty())
      read_values(to, set_, backward_.indices(), model_.weights(), backward_.workspace(),
                  exec_.stream());
  backward_.publish(state_.values);
  backward_.choose_products(spec_.max_rows, gradient_);
}

bool Trainer::writes() const { return !spec_.comm || spec_.comm->rank() == 0; }

void Trainer::copy_out(void* to, const void* from, size_t bytes) const {
  if (!exec_.on_gpu()) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return;
  }
  exec_.queue->copy_out(to, from, bytes);
  exec_.queue->wait();
}

void Trainer::replace(void* numbers, const void* by, size_t bytes) const {
  if (exec_.on_gpu())
    exec_.queue->copy_in(numbers, by, bytes);
  else if (bytes > 0)
    std::memcpy(numbers, by, bytes);
}

std::span<const float> Trainer::placed_values() const {
  if (!spec_.narrow_states) return state_.values;
  read_values(gradient_, set_, backward_.indices(), model_.weights(), backward_.workspace(),
              exec_.stream());
  return gradient_;
}

std::vector<float> Trainer::values() const { return copy_of(placed_values()); }

void Trainer::set_values(std::span<const float> values) {
  const std::span<float> to = spec_.narrow_states ? gradient_ : state_.values;
  TANDEM_CHECK(values.size() == to.size(), "found {} values, expected {}", values.size(),
               to.size());
  replace(to.data(), values.data(), values.size_bytes());
  write_values(model_.weights(), set_, backward_.indices(), to, exec_.stream());
  if (!spec_.narrow_states) backward_.publish(to);
}

void Trainer::restart(std::span<const float> values) {
  set_values(values);
  const std::vector<std::byte> zeros(
      std::max(state_.first.size_bytes(), state_.narrow_first.size_bytes()));
  for (const std::span<std::byte> moment :
       {std::as_writable_bytes(state_.first), std::as_writable_bytes(state_.second),
        std::as_writable_bytes(state_.narrow_first), std::as_writable_bytes(state_.narrow_second)})
    replace(moment.data(), zeros.data(), moment.size());
  state_.steps = 0;
}

LossSum Trainer::run(std::span<const MicroBatch> batches, std::span<float> gradient) {
  poll(spec_.interrupted);  // ranks without a micro-batch, too
  LossSum loss{.n_tokens = n_supervised(batches)};
  if (loss.n_tokens == 0) {
    ops::clear(gradient.data(), static_cast<int64_t>(gradient.size()), exec_.stream());
    return loss;
  }
  auto accumulate = ops::Accumulate::no;
  const float scale = 1.0f / static_cast<float>(loss.n_tokens);
  MicroBatchName name{.step = state_.steps};
  const size_t last = last_own(batches);
  const auto sum_layer = [&](int layer) { sum_->complete(layer); };
  if (sum_) sum_->begin(gradient);
  for (size_t i = 0; i < batches.size(); ++i, ++name.batch) {
    if (!is_own(i)) continue;
    const bool sums = sum_ && i == last && !gradient.empty();
    loss.sum += backward_.run(batches[i], scale, gradient, name, accumulate,
                              sums ? sum_layer : std::function<void(int)>());
    if (n_supervised({&batches[i], 1}) > 0) accumulate = ops::Accumulate::yes;
  }
  if (accumulate == ops::Accumulate::no)  // another rank has all that is supervised
    ops::clear(gradient.data(), static_cast<int64_t>(gradient.size()), exec_.stream());
  if (!sum_) return loss;
  if (!gradient.empty()) sum_->finish();
  loss.sum = spec_.comm->sum_of(loss.sum);  // while a GPU's sums are under way
  return loss;
}

size_t Trainer::last_own(std::span<const MicroBatch> batches) const {
  size_t last = batches.size();
  for (size_t i = 0; i < batches.size(); ++i)
    if (is_own(i) && n_supervised(batches.subspan(i, 1)) > 0) last = i;
  return last;
}

bool Trainer::is_own(size_t i) const {
  return !spec_.comm ||
         i % static_cast<size_t>(spec_.comm->size()) == static_cast<size_t>(spec_.comm->rank());
}

LossSum Trainer::gradients(std::span<const MicroBatch> batches) { return run(batches, gradient_); }

LossSum Trainer::loss(std::span<const MicroBatch> batches) { return run(batches, {}); }

StepResult Trainer::step(std::span<const MicroBatch> batches) {
  StepResult result{.loss = gradients(batches), .rate = spec_.schedule.at(state_.steps)};
  for (const MicroBatch& b : batches) result.n_rows += static_cast<int64_t>(b.tokens.size());
  result.gradient_norm = std::sqrt(ops::square_sum(gradient_, square_sums_, exec_.queue));
  // Ranks with other numbers of threads add squares up in another order.
  if (spec_.comm) result.gradient_norm = spec_.comm->of_rank0(result.gradient_norm);
  result.skipped = result.loss.n_tokens == 0 || !std::isfinite(result.loss.sum) ||
                   !std::isfinite(result.gradient_norm);
  if (result.skipped) return result;
  constexpr double kTiny = 1e-6;  // as PyTorch clips
  if (spec_.clip > 0)
    result.clip_scale = std::min(1.0, spec_.clip / (result.gradient_norm + kTiny));
  ops::AdamW by = spec_.optimizer;
  by.learning_rate = static_cast<float>(result.rate);
  ++state_.steps;
  if (spec_.narrow_states) {
    step_in_place(by, static_cast<float>(result.clip_scale));
    return result;
  }
  step_own(by, static_cast<float>(result.clip_scale));
  publish();
  return result;
}

void Trainer::step_own(const ops::AdamW& by, float gradient_scale) {
  const auto own = [&](std::span<float> all) { return all.subspan(own_first_, own_size_); };
  ops::adamw({.weights = own(state_.values),
              .first = state_.first,
              .second = state_.second,
              .gradient = own(gradient_),
              .base = start_.empty() ? start_ : own(start_)},
             by, state_.steps, gradient_scale, exec_.stream());
  if (spec_.divides_moments())
    spec_.comm->gather(state_.values.data(), part_size_ * sizeof(float), exec_.stream());
}

std::vector<float> Trainer::moments_of_all(std::span<const float> own) const {
  if (!spec_.divides_moments()) return copy_of(own);
  constexpr size_t kPiece = size_t{1} << 20;  // numbers of each rank that go at once
  const auto n_ranks = static_cast<size_t>(spec_.n_ranks);
  std::vector<float> piece(n_ranks * std::min(kPiece, part_size_));
  std::vector<float> all(spec_.comm->rank() == 0 ? static_cast<size_t>(set_.size) : 0);
  for (size_t at = 0; at < part_size_; at += kPiece) {
    const size_t n = std::min(kPiece, part_size_ - at);
    if (at < own.size()) {
      const size_t here = std::min(n, own.size() - at);
      copy_out(piece.data() + n * static_cast<size_t>(spec_.comm->rank()), own.data() + at,
               here * sizeof(float));
    }
    spec_.comm->gather_on_host(reinterpret_cast<std::byte*>(piece.data()), n * sizeof(float));
    for (size_t r = 0; r < n_ranks; ++r) {
      const size_t to = r * part_size_ + at;
      if (to < all.size())
        std::copy_n(piece.data() + r * n, std::min(n, all.size() - to), all.data() + to);
    }
  }
  return all;
}

void Trainer::step_in_place(const ops::AdamW& by, float gradient_scale) {
  const auto step = [&](void* weights, DType type, int64_t offset, int64_t size) {
    if (size == 0) return;
    const auto first = static_cast<size_t>(offset), n = static_cast<size_t>(size);
    ops::adamw_narrow({.weights = weights,
                       .weight_type = type,
                       .first = state_.narrow_first.subspan(first, n),
                       .second = state_.narrow_second.subspan(first, n),
                       .gradient = gradient_.subspan(first, n),
                       .base = start_.empty() ? start_ : start_.subspan(first, n),
                       .first_element = offset,
                       .seed = spec_.rounding_seed},
                      by, state_.steps, gradient_scale, exec_.stream());
  };
  each_weight(set_, model_.weights(), [&](const TrainedMatrix& m, ops::PackedWeights& w) {
    if (m.trained()) step(ops::rows_in_place(w), w.dtype(), m.offset, m.size());
    if (m.bias) step(w.bias(), DType::f32, m.bias_offset, m.bias_size);
    if (m.any()) ops::changed_in_place(w, exec_.stream());
  });
  step(model_.weights().norms.data(), DType::f32, set_.norms_offset, set_.norms_size);
}

void Trainer::publish() {
  TANDEM_CHECK(!spec_.narrow_states, "bf16 states have no separate values to publish");
  write_values(model_.weights(), set_, backward_.indices(), state_.values, exec_.stream());
  backward_.publish(state_.values);
}

}  // namespace tandem::train
