#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "train/backward/micro_batch.h"
#include "train/data/dataset.h"
#include "train/data/settings.h"

namespace tandem::train {

/// A part of a step that goes through the model at once.
struct MicroPlan {
  std::vector<int32_t> samples;  // of the dataset
  int32_t padded_rows = 0;       // of each sample; 0: without padding
};

/// 0 .. n - 1 in the order of an epoch: a pure function of its arguments.
std::vector<int32_t> shuffled(int32_t n, uint64_t seed, int64_t epoch);

/// Samples that are trained on, and those drawn for validation, each in the dataset's order. A pure
/// function of its arguments.
/// errors   kind recipe at data.val_size: no sample is left to train on
std::pair<std::vector<int32_t>, std::vector<int32_t>> split_validation(int32_t n, int64_t n_val,
                                                                       uint64_t seed);

/// Lays samples into micro-batches by train.batching, each of at most train.micro_tokens rows and
/// most_samples() samples. varlen and pad take them in their order; pack takes the longest first,
/// each to the fullest micro-batch that has room for it (best fit decreasing).
std::vector<MicroPlan> divide(const Dataset& data, std::span<const int32_t> samples,
                              const BatchSettings& settings);

/// The tokens of a micro-batch. Documents are the samples; rows of padding come last in theirs,
/// hold token 0 and have no target: attention is causal, so no other row sees them.
MicroBatch make_micro_batch(const Dataset& data, const MicroPlan& plan);

/// One pass over samples, shuffled and cut into steps. All of it follows from the seed and the
/// number of the epoch: a run that is resumed makes it again.
class Epoch {
 public:
  Epoch(const Dataset& data, std::span<const int32_t> samples, const BatchSettings& settings,
        uint64_t seed, int64_t epoch);

  /// train.batch samples each; the last one has the rest (train.drop_last).
  static int64_t n_steps(int64_t n_samples, const BatchSettings& settings);
  int64_t n_steps() const { return n_steps(static_cast<int64_t>(order_.size()), settings_); }
  /// The samples of a step.
  std::span<const int32_t> samples(int64_t step) const;
  /// Its micro-batches.
  std::vector<MicroPlan> step(int64_t step) const {
    return divide(data_, samples(step), settings_);
  }
  /// Tokens of a step that the loss counts: the divisor of its sum.
  int64_t n_supervised(int64_t step) const;

 private:
  const Dataset& data_;
  BatchSettings settings_;
  std::vector<int32_t> order_;
};

/// How full the micro-batches of an epoch are.
struct EpochCounts {
  int64_t steps = 0, micro_batches = 0, samples = 0;
  int64_t rows = 0;         // real tokens
  int64_t padded_rows = 0;  // the same with padding
  int64_t supervised = 0;
  int64_t most_rows = 0, most_samples = 0;  // of a micro-batch, rows with padding
};
EpochCounts count(const Epoch& epoch, const Dataset& data);

}  // namespace tandem::train
