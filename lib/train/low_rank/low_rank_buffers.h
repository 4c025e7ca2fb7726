#pragma once
#include <array>
#include <span>
#include <vector>

#include "model/forward/side_products.h"
#include "tensor/arena.h"
#include "train/backward/backward_buffers.h"

namespace tandem::train {

/// Memory of the low-rank factors of a run, in the compute type unless said; null or empty where a
/// run needs none of it.
struct LowRankBuffers {
  struct OfMatrix {
    void* inner = nullptr;     // [max_rows, factors rank] gamma D(x) A^T of the last forward
    void* added = nullptr;     // [max_rows, dim] DoRA: what o or down added to the stream
    float* squares = nullptr;  // [out] f32, DoRA: of the rows of W
    float* scale = nullptr;    // [out] f32, DoRA: magnitude over norm
  };
  std::vector<model::PerStack<OfMatrix>> layers;
  void* copies;   // [set.size] of the values; null of f32, which are used themselves
  void* dinner;   // [max_rows, most factors rank] gradient of `inner`
  void* dropped;  // [max_rows, most in] with dropout
  float* apart;   // [max_rows, dim] f32, DoRA: the same before it is added
  void* scaled;   // [max_rows, dim] DoRA: gradients of o or down
  void* outputs;  // [max_rows, 2 ffn_dim] DoRA: gate and up before their gradient replaces them
  float* wa;      // [most rows, rank] f32, DoRA
  float* aa;      // [rank, rank] f32, DoRA
  std::span<std::byte> workspace;

  static void plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan);
  LowRankBuffers(const BackwardSpec& spec, const TrainedSet& set, Arena& arena);

 private:
  LowRankBuffers() = default;
};

}  // namespace tandem::train
