#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tensor/comm.h"
#include "tensor/cuda.h"
#include "train/trained_set.h"

namespace tandem::train {

/// A piece of a gradient that the ranks add up at once.
struct GradientBucket {
  /// Of a backward pass, the last layer that writes into it: n_layers, the head alone; -1: it is
  /// complete with the pass.
  int complete_with = 0;
  int64_t begin = 0, end = 0;
};

/// The gradient of a set in pieces of whole layers, in the order in which a backward pass completes
/// them. All ranks have the same.
/// least    numbers of a piece, but of the last one of the layers
std::vector<GradientBucket> gradient_buckets(const TrainedSet& set, int64_t least);

/// Adds up a gradient over ranks while the backward pass that makes it goes on: on a GPU at the
/// same time, on another queue; on the CPU piece by piece, between its layers.
class GradientSum {
 public:
  /// Numbers of a bucket, at least. Sums take cores from the products next to them: of slices they
  /// are short and go after the pass, of all weights they are worth hiding.
  static constexpr int64_t kBucket = int64_t{1} << 26;

  /// queue    of the backward pass, or null on the CPU
  GradientSum(std::shared_ptr<Comm> comm, std::vector<GradientBucket> buckets, cuda::Queue* queue);

  /// A step begins whose gradient will be here.
  void begin(std::span<float> gradient);
  /// What the backward pass writes down to this layer, n_layers for the head alone, has been put on
  /// the queue.
  void complete(int layer);
  /// All of it; the queue follows the sums.
  void finish();

 private:
  std::shared_ptr<Comm> comm_;
  std::vector<GradientBucket> buckets_;
  cuda::Queue* queue_;                      // of the backward pass; null on the CPU
  std::unique_ptr<cuda::Queue> own_queue_;  // of the sums
  std::optional<cuda::Event> event_;
  std::span<float> gradient_;
  size_t next_ = 0;  // bucket
};

}  // namespace tandem::train
