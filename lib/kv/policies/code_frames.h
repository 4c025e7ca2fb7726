#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/code/code.h"
#include "kv/policies/token_index.h"
#include "kv/policy.h"

namespace tandem::kv {

/// What the codes of a sequence's keys under one sparse layer and KV head are relative to.
struct CodeFrame {
  const float* center;  // [head_dim] mean of the keys that the prompt had in the index
  const float* axis;    // [head_dim] direction of the newest queries' mean, a unit vector; or zero
  CodeUnits units;
};

/// The axis of a frame: a unit vector in the direction of the mean query, of some heads and the
/// newest 64 tokens before `end`. It is zero if no query is held.
/// shapes   axis [head_dim]
void axis_of_queries(const QueryRing& queries, int slot, int end, int layer, Range heads,
                     std::span<float> axis);

/// The signs of rotate_rows, [2, dims].
std::vector<float> rotation_signs(int dims, uint64_t seed);

/// The frames of every sequence, sparse layer and KV head, frozen when its prompt ends, so that all
/// keys of a sequence are coded the same way. Keys lie in a narrow cone, and so do queries: without
/// the keys' mean, and without the share along the queries' mean direction, which has a separate
/// byte, the codes have a shorter vector to describe, and smaller errors.
class CodeFrames {
 public:
  static constexpr int kAxisQueries = 64;  // tokens whose queries give the axis

  CodeFrames(const Bounds& bounds, HeadGrid grid, int dims, int bits);
  void plan(MemoryPlan&, const std::string& prefix) const;
  void allocate(Arena&, const std::string& prefix);

  CodeFrame at(int slot, int ordinal, int kv_head) const;
  /// Sets the frames of a slot by its keys [begin, end) and the newest of its queries, if any are
  /// held.
  void set(const TokenIndex::Work& work, std::span<const int> layers, int begin, int end,
           const PagedStore& store, const QueryRing* queries);
  void copy(int from, int to, const Exec& exec);
  /// On a GPU, as kernels/code/device_codes.h has them: those of a sparse layer.
  float* frames(int ordinal) const { return data(0, ordinal, 0); }
  int64_t slot_stride() const { return static_cast<int64_t>(grid_.cells(1) * width()); }
  int64_t head_stride() const { return static_cast<int64_t>(width()); }

 private:
  size_t width() const { return 2 * static_cast<size_t>(geometry_.head_dim) + 2; }
  float* data(int slot, int ordinal, int kv_head) const;

  Geometry geometry_;
  HeadGrid grid_;
  int max_seqs_, dims_, bits_;
  Device device_;
  float* data_ = nullptr;  // [slots, sparse layers, KV heads, width()]: center, axis, units
};

}  // namespace tandem::kv
