#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kv/cache.h"
#include "model/forward/transformer.h"
#include "ops/backward.h"
#include "tensor/arena.h"
#include "train/backward/backward_buffers.h"
#include "train/backward/micro_batch.h"
#include "train/low_rank/low_rank.h"

namespace tandem::train {

/// The backward pass of a model by hand: a forward that keeps activations, the loss, and a walk
/// from the last layer to the frontier, which adds the gradients of the trained values.
class Backward {
 public:
  static void plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan) {
    BackwardBuffers::plan(spec, set, plan);
    if (set.low_rank.rank > 0) LowRank::plan(spec, set, plan);
  }
  /// All must outlive this. The model's run, on the spec's device.
  Backward(const BackwardSpec& spec, const TrainedSet& set, model::Transformer& model,
           kv::Cache& cache, Arena& arena, const Exec& exec = {});

  /// Chooses on a GPU how the products of micro-batches of about as many rows run. The contents
  /// of `gradient` are lost; empty: products of weights are not among them.
  void choose_products(int64_t rows, std::span<float> gradient);

  /// Runs a micro-batch. The gradient of `scale` times its loss becomes `gradient`, or is added to
  /// that, unless it is empty. Returns the loss: the sum over the supervised rows of -ln p(target).
  /// Of a micro-batch without any nothing is done.
  /// shapes   gradient [set.size] on the run's device
  /// name     of what dropout draws
  /// on_layer called when all of the gradient that the pass writes down to a layer is on its way;
  ///          n_layers: that of the head
  double run(const MicroBatch& batch, float scale, std::span<float> gradient,
             const MicroBatchName& name = {}, ops::Accumulate accumulate = ops::Accumulate::yes,
             const std::function<void(int layer)>& on_layer = {});
  /// Low-rank factors are these from now on; of sets without any does nothing.
  /// shapes   values [set.size] on the run's device, which must outlive their use
  void publish(std::span<const float> values) {
    if (low_rank_) low_rank_->publish(values);
  }

  const Frontier& frontier() const { return frontier_; }
  const PlacedIndices& indices() const { return indices_; }
  /// Scratch between micro-batches.
  std::span<std::byte> workspace() const { return buffers_.workspace; }

 private:
  /// The supervised rows of a batch, and their targets; pointers are into the run's memory.
  struct Supervised {
    const int32_t *rows, *targets;
    int64_t n;
  };
  void head(const Supervised& supervised, float scale);
  /// Whether one product writes all of a matrix's gradient.
  bool writes_whole(const TrainedMatrix& m) const;
  /// Zeroes the others, which are sums.
  void clear_gradient();
  /// Waits for a GPU.
  double sum_of_losses(int64_t n) const;
  /// The activations that the backward pass of a layer reads.
  model::LayerActivations activations(int index, const kv::Step& step);
  void ffn(int index, const model::LayerActivations& kept);
  void attention(int index, const model::LayerActivations& kept, const kv::Step& step);
  void embedding(std::span<const int32_t> tokens);
  /// A list of the host where the run computes: on a GPU a copy at `place`.
  const int32_t* placed(std::span<const int32_t> list, int32_t* place) const;
  /// From the gradient of a layer's product that of x W^T: another with low-rank factors alone.
  Tensor through_factors(int layer, model::Role of, const Tensor& dy, const Tensor& y = {});
  /// Gradient of a product that enters the residual stream, from the gradient of the stream.
  /// kept     the product, if a norm follows it
  Tensor through_stream(int layer, model::Role of, void* kept);
  /// dx = dy W, and through the factors of the same product.
  void input_gradient(const Tensor& dx, const Tensor& dy, const ops::PackedWeights& w);
  /// The trained part of the gradient of y = x W^T + b.
  /// x        its columns that are trained, if columns are
  void weight_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x);
  /// The same of single elements, from that of the whole matrix: it saves no work.
  void scattered_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x);
  /// Takes the gradient dy of y = norm(stream) W^T through W and the norm, into that of the stream.
  void through_normed_linear(const Tensor& dy, const ops::PackedWeights& w, const float* norm,
                             const void* kept);
  /// The output of a residual stream's norm: as it was kept, or computed again.
  Tensor normed(const float* norm, const void* residual, void* kept);
  /// Adds the gradient of the norm's weight and the stream's.
  void norm_backward(ops::RmsNormBackwardArgs args);

  Tensor tensor(void* at, DType dtype, int64_t rows, int64_t cols) const {
    return {at, dtype, {rows, cols}, spec_.device};
  }
  Tensor act(void* at, int64_t cols) const { return tensor(at, spec_.dtype, n_rows_, cols); }
  Tensor f32(float* at, int64_t cols) const { return tensor(at, DType::f32, n_rows_, cols); }
  Tensor dresidual() const { return f32(buffers_.dstream, spec_.config.dim); }
  Tensor flat(int64_t offset, int64_t rows, int64_t cols) const {
    return tensor(gradient_.data() + offset, DType::f32, rows, cols);
  }
  Stream stream() const { return exec_.stream(); }
  float* norm_gradient(const float* weight) const {
    return gradient_.data() + set_.norms_offset + (weight - model_.weights().norms.data());
  }

  BackwardSpec spec_;
  const TrainedSet& set_;
  Frontier frontier_;
  model::Transformer& model_;
  kv::Cache& cache_;
  Exec exec_;
  BackwardBuffers buffers_;
  PlacedIndices indices_;
  std::unique_ptr<LowRank> low_rank_;  // null: no factors
  std::set<int64_t> chosen_;           // numbers of rows
  int64_t n_rows_ = 0;                 // of the micro-batch in hand
  std::span<float> gradient_;          // of the call in hand
  ops::Accumulate accumulate_ = ops::Accumulate::yes;
};

}  // namespace tandem::train
