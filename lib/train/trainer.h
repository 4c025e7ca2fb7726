#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "train/backward/backward.h"
#include "train/gradient_sum.h"

namespace tandem::train {

/// Learning rate over a run.
struct Schedule {
  enum class Kind : uint8_t { constant, linear, cosine };

  Kind kind = Kind::linear;
  double rate = 2e-4;  // after the warm-up
  int64_t warmup_steps = 0;
  int64_t steps = 1;       // of the run
  bool from_zero = true;   // the first step of a warm-up has rate 0, as in transformers
  double least_share = 0;  // of the rate, where it ends

  /// Returns the rate of the step after `done` ones.
  double at(int64_t done) const;
};

/// Shapes and rates of a training run.
struct TrainerSpec {
  model::ModelConfig config;
  DType dtype = DType::f32;  // of weights and activations; trained values have f32 copies, but for
                             // narrow_states
  int max_rows = 2048;       // of a micro-batch
  int longest = 0;           // rows of a document, by which longrope takes its factors; 0: max_rows
  int max_documents = 256;   // of a micro-batch
  int head_rows = 512;       // supervised rows whose logits are there at once
  Schedule schedule = {};
  ops::AdamW optimizer = {};    // its rate is the schedule's
  bool decays_to_start = true;  // weight decay pulls to the values before the first step, not to 0
  double clip = 1.0;            // largest norm of the gradient of a step; 0 = any
  Recomputation recompute = Recomputation::light;
  /// Moments in bf16 and no f32 copies of the trained values, which are all of their matrices: the
  /// model's own are stepped. In bf16 they are rounded stochastically by the seed, or to nearest.
  bool narrow_states = false;
  std::optional<uint64_t> rounding_seed = {};
  Interrupted interrupted = {};
  Device device = {};
  int multiprocessors = 0;  // of the GPU, on one
  /// The ranks that share the micro-batches of every step, each with the whole model and a part of
  /// the moments, narrow ones apart; of a plan their number alone.
  int n_ranks = 1;
  std::shared_ptr<Comm> comm = nullptr;
  int64_t summed_at_once = GradientSum::kBucket;  // numbers of a gradient, at least

  BackwardSpec backward() const {
    return {config, dtype, max_rows, head_rows, recompute, interrupted, device};
  }
  model::Transformer::Options model_options(const model::Trainable& trainable) const;
  /// A micro-batch is a prefill of sequences that are never committed.
  kv::Cache::Spec cache() const;
  /// Whether each rank has the moments of some of the values, which it steps.
  bool divides_moments() const { return n_ranks > 1 && !narrow_states; }
  /// Whether the values before the first step must be kept.
  bool keeps_start() const { return decays_to_start && optimizer.weight_decay > 0; }
};

/// A loss summed over supervised tokens.
struct LossSum {
  double sum = 0;
  int64_t n_tokens = 0;  // supervised

  double mean() const { return n_tokens == 0 ? 0 : sum / static_cast<double>(n_tokens); }
};

/// Supervised rows of micro-batches.
int64_t n_supervised(std::span<const MicroBatch> batches);

struct StepResult {
  LossSum loss;              // before the step
  int64_t n_rows = 0;        // tokens read
  double gradient_norm = 0;  // before clipping
  double clip_scale = 1;     // the gradient's factor
  double rate = 0;
  bool skipped = false;  // nothing supervised, or a loss or gradient that is not finite
};

/// Trains some weights of a model: token-mean loss over micro-batches, AdamW on f32 copies of the
/// trained values, which are rounded into the model's weights after every step, or with narrow
/// states on those weights. The same
/// micro-batches give the same bits, on one machine with one number of threads. Several ranks take
/// the micro-batches of a step in turn, add up gradients in the order of ranks, and make the same
/// step, bit for bit: all call with the same micro-batches.
class Trainer {
 public:
  /// All but the memory of the program.
  static MemoryPlan plan(const TrainerSpec& spec, const TrainedSet& set);
  /// The least recomputation whose plan fits into `bytes`; the most where none does.
  static Recomputation least_recompute(TrainerSpec spec, const TrainedSet& set, size_t bytes);
  /// The values whose moments one of the ranks has, at most.
  static int64_t own_values(const TrainerSpec& spec, const TrainedSet& set);
  /// errors   kind input (the source), memory, interrupted
  Trainer(const TrainerSpec& spec, TrainedSet set, std::unique_ptr<model::WeightSource> source,
          const std::function<void(double share)>& on_load = {});

  /// One optimizer step. Every supervised token of the micro-batches counts the same.
  /// errors   kind interrupted: nothing has changed
  StepResult step(std::span<const MicroBatch> batches);

  /// The gradient of the mean loss, into gradient(), and the loss.
  LossSum gradients(std::span<const MicroBatch> batches);
  /// The loss alone.
  LossSum loss(std::span<const MicroBatch> batches);

  /// What a run continues from: f32 copies of the trained values, their moments, steps done, in
  /// the memory of the run's device. After values were changed from outside, publish() rounds them
  /// into the model.
  struct State {
    std::span<float> values;                      // [set.size]; not with narrow states
    std::span<float> first, second;               // the same, of several ranks [own_size()]
    std::span<bf16> narrow_first, narrow_second;  // [set.size] with them
    int64_t steps = 0;
  };
  State& state() { return state_; }
  void publish();
  /// Begins again from these values: no steps done, moments of 0.
  /// shapes   values [set.size]
  void restart(std::span<const float> values);
  void set_schedule(const Schedule& schedule) { spec_.schedule = schedule; }
  /// The trained values in host memory, and others in their place. With narrow states both use the
  /// memory of the gradient.
  /// shapes   values [set.size]
  std::vector<float> values() const;
  /// The same where the run has them, until its next step.
  std::span<const float> placed_values() const;
  void set_values(std::span<const float> values);
  /// The values whose moments this rank has: of several ranks a part of them, in their order.
  size_t own_first() const { return own_first_; }
  size_t own_size() const { return own_size_; }
  /// Moments of all ranks in host memory, on rank 0; all call it together.
  /// shapes   own [own_size()]; result [set.size], on other ranks of no meaning
  std::vector<float> moments_of_all(std::span<const float> own) const;
  /// Numbers of the run in host memory, and others in their place.
  template <class T>
  std::vector<T> copy_of(std::span<const T> numbers) const {
    std::vector<T> copy(numbers.size());
    copy_out(copy.data(), numbers.data(), numbers.size_bytes());
    return copy;
  }
  template <class T>
  std::vector<T> copy_of(std::span<T> numbers) const {
    return copy_of(std::span<const T>(numbers));
  }
  void replace(void* numbers, const void* by, size_t bytes) const;

  bool on_gpu() const { return exec_.on_gpu(); }
  /// Whether files are this rank's to write.
  bool writes() const;
  std::span<const float> gradient() const { return gradient_; }
  const TrainedSet& set() const { return set_; }
  const Frontier& frontier() const { return backward_.frontier(); }
  const TrainerSpec& spec() const { return spec_; }
  model::Transformer& model() { return model_; }

 private:
  LossSum run(std::span<const MicroBatch> batches, std::span<float> gradient);
  /// Whether the i-th micro-batch of a step is this rank's.
  bool is_own(size_t i) const;
  /// The last one of this rank that has supervised rows; their number where none has.
  size_t last_own(std::span<const MicroBatch> batches) const;
  void copy_out(void* to, const void* from, size_t bytes) const;
  void step_in_place(const ops::AdamW& by, float gradient_scale);
  /// The values that this rank has the moments of, and those that other ranks have stepped.
  void step_own(const ops::AdamW& by, float gradient_scale);

  TrainerSpec spec_;
  TrainedSet set_;
  std::unique_ptr<cuda::Queue> queue_;  // null on the CPU
  Exec exec_;
  Arena arena_;
  model::Transformer model_;
  kv::Cache cache_;
  Backward backward_;
  std::unique_ptr<GradientSum> sum_;  // null: one rank
  std::span<float> gradient_;         // [set.size]
  std::span<float> start_;            // [set.size] or empty: the model's own values
  size_t part_size_ = 0;              // of ranks; the last ones may have less
  size_t own_first_ = 0, own_size_ = 0;
  double* square_sums_ = nullptr;  // of a GPU
  State state_;
};

}  // namespace tandem::train
