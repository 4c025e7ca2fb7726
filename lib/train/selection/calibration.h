#pragma once
#include <memory>
#include <span>

#include "train/selection/selection.h"
#include "train/trainer.h"

namespace tandem::train {

/// Scores that units are selected by, from a model and a few micro-batches before anything is
/// trained.
class Calibration {
 public:
  /// spec     shapes alone
  /// errors   as Trainer
  Calibration(const TrainerSpec& spec, std::unique_ptr<model::WeightSource> source);

  /// S2FT-W: norms of the units' weights.
  Scores weights() const;
  /// S2FT-A: norms of their activations over all rows: inputs of o and down, outputs of the others,
  /// q and k before heads are turned.
  Scores activations(std::span<const MicroBatch> batches);
  /// S2FT-G: norms of the gradient of the mean loss. A layer at a time, so that no more than its
  /// gradient is held: each runs all forwards, and the backward pass down to it.
  Scores gradients(std::span<const MicroBatch> batches);

 private:
  /// A tensor in host memory, of a GPU's a copy.
  struct HostTensor {
    std::vector<std::byte> copy;
    Tensor tensor;
  };
  HostTensor on_host(const Tensor& t) const;
  FeatureSquares squares_of(const std::function<Tensor(Role)>& of) const;
  void add_column_squares(std::vector<double>& sums, const Tensor& x) const;

  TrainerSpec spec_;
  std::unique_ptr<cuda::Queue> queue_;  // null on the CPU
  Exec exec_;
  Arena arena_;
  model::Transformer model_;
  kv::Cache cache_;
};

/// S2FT-S: products of W's and A's scores.
Scores products(const Scores& a, const Scores& b);

}  // namespace tandem::train
