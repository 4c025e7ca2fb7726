#include "kv/policies/code_frames.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/rng.h"
#include "kernels/code/code_numbers.h"
#include "kv/policies/centered_keys.h"

namespace tandem::kv {
CodeFrames::CodeFrames(const Bounds& bounds, HeadGrid grid, int dims, int bits)
    : geometry_(bounds.geometry),
      grid_(grid),
      max_seqs_(bounds.max_seqs),
      dims_(dims),
      bits_(bits),
      device_(bounds.device) {}

void CodeFrames::plan(MemoryPlan& plan, const std::string& prefix) const {
  plan.add(prefix + ".frames", grid_.cells(max_seqs_) * width() * sizeof(float), device_);
}

void CodeFrames::allocate(Arena& arena, const std::string& prefix) {
  if (grid_.n_sparse > 0) data_ = static_cast<float*>(arena.take(prefix + ".frames"));
}

float* CodeFrames::data(int slot, int ordinal, int kv_head) const {
  return data_ + grid_.cell(slot, ordinal, kv_head) * width();
}

CodeFrame CodeFrames::at(int slot, int ordinal, int kv_head) const {
  const float* x = data(slot, ordinal, kv_head);
  const int d = geometry_.head_dim;
  return {.center = x, .axis = x + d, .units = {.scale = x[2 * d], .axis = x[2 * d + 1]}};
}

void CodeFrames::copy(int from, int to, const Exec& exec) {
  if (data_ == nullptr) return;
  const size_t bytes = grid_.cells(1) * width() * sizeof(float);
  if (exec.on_gpu())
    exec.queue->copy_within(data(to, 0, 0), data(from, 0, 0), bytes);
  else
    std::memcpy(data(to, 0, 0), data(from, 0, 0), bytes);
}

void CodeFrames::set(const TokenIndex::Work& work, std::span<const int> layers, int begin, int end,
                     const PagedStore& store, const QueryRing* queries) {
  const int slot = work.slot;
  const int heads = geometry_.n_kv_heads;
  const auto d = static_cast<size_t>(geometry_.head_dim);
  parallel_for((work.ordinals.end - work.ordinals.begin) * heads, [&](int task) {
    const int ordinal = work.ordinals.begin + task / heads, head = task % heads;
    const int layer = layers[static_cast<size_t>(ordinal)];
    const KeyRows keys = store.keys(layer, slot, head);
    float* center = data(slot, ordinal, head);
    float* axis = center + d;
    mean_of_keys(keys, begin, end, {center, d});
    std::vector<float> key(d);
    std::fill_n(axis, d, 0.0f);
    const int group = geometry_.group();
    if (queries != nullptr)
      axis_of_queries(*queries, slot, work.length, layer, {head * group, (head + 1) * group},
                      {axis, d});
    float most_share = 0, most_square = 0, norm = 0;
    for (int t = begin; t < end; ++t) {
      read_centered(keys, t, 1, {center, d}, key.data(), &norm);
      const float share = dot_of(key, {axis, d});
      most_share = std::max(most_share, std::abs(share));
      most_square = std::max(most_square, norm * norm - share * share);
    }
    axis[d] = code_scale_unit(std::sqrt(most_square), dims_, bits_);
    axis[d + 1] = kAxisRoom * most_share / 127;
  });
}

void axis_of_queries(const QueryRing& queries, int slot, int end, int layer, Range heads,
                     std::span<float> axis) {
  const size_t d = axis.size();
  const DType dtype = queries.spec().dtype;
  const int last = std::min(queries.end(slot), end);
  std::vector<double> sum(d);
  std::vector<float> q(d);
  for (int t = std::max(queries.begin(slot), last - CodeFrames::kAxisQueries); t < last; ++t) {
    const std::byte* row = queries.row(slot, layer, t);
    for (int h = heads.begin; h < heads.end; ++h) {
      read_vector(row + static_cast<size_t>(h) * d * dtype_bytes(dtype), dtype, q);
      for (size_t c = 0; c < d; ++c) sum[c] += q[c];
    }
  }
  double square = 0;
  for (const double x : sum) square += x * x;
  for (size_t c = 0; c < d; ++c)
    axis[c] = square > 0 ? static_cast<float>(sum[c] / std::sqrt(square)) : 0.0f;
}

std::vector<float> rotation_signs(int dims, uint64_t seed) {
  PhiloxStream draw(seed, 0xc0de);
  std::vector<float> signs(2 * static_cast<size_t>(dims));
  for (float& sign : signs) sign = (draw.next() & 1) != 0 ? -1.0f : 1.0f;
  return signs;
}

}  // namespace tandem::kv
