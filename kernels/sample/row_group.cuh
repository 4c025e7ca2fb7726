#pragma once
// One row of logits in the shared memory of a group of blocks, and what the blocks work out about
// it together. Compiled once for each body: TANDEM_GPU_BODY is `hopper` or `portable`, and the link
// by which the blocks of a group reach each other is of that name.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#ifdef TANDEM_HOPPER_BODY
#include "kernels/sample/hopper/row_link.cuh"
#else
#include "kernels/sample/row_link.cuh"
#endif
#include "kernels/sample/row_split.h"
#include "kernels/sample/select.h"
#include "kernels/sample/weights.h"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

inline constexpr int kRowWarps = kRowThreads / kWarp;

/// Sums over threads in the order of their ids: of those before this one, and of all.
struct RowSum {
  uint64_t before, total;
};

/// The largest key of a row and the first id that has it.
struct Best {
  uint32_t key;
  int32_t id;

  __device__ void consider(float x, int32_t i) {
    const uint32_t k = order_key(x);
    // A negative NaN lies below all numbers; as the largest key it makes the row meaningless too.
    const uint32_t mine = k < kKeyMinusInf ? ~0u : k;
    if (mine > key) *this = {mine, i};
  }
  __device__ bool comes_before(Best b) const { return key != b.key ? key > b.key : id < b.id; }
  __device__ bool is_valid() const { return key > kKeyMinusInf && key < kKeyPlusInf; }
  __device__ float logit() const {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
  }
  __device__ Best of_warp() const {
    const uint32_t high = __reduce_max_sync(kAllLanes, key);
    return {high, __reduce_min_sync(kAllLanes, key == high ? id : 0x7fffffff)};
  }
};

__device__ inline uint64_t inclusive_sum(uint64_t x) {
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t below = __shfl_up_sync(kAllLanes, x, step);
    if (threadIdx.x % kWarp >= step) x += below;
  }
  return x;
}

/// Sum over a warp, in all lanes.
__device__ inline uint64_t sum_of_warp(uint64_t x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

/// Data that the blocks of a group publish to each other: up to kWords numbers at once.
struct alignas(16) RowShared {
  static constexpr int kWords = 3;
  uint64_t of_warp[kWords][kRowWarps];
  // Published. Two take turns: when one is written again, all blocks have met at the other's
  // barrier, and have read it before.
  uint64_t of_block[2][kWords];
};

class RowGroup {
 public:
  /// shared: within what the link was made with. logit: room for part_size() floats, 16-byte
  /// aligned.
  __device__ RowGroup(const RowSplit& split, const RowLink& link, float* logit, RowShared& shared)
      : link_(link),
        shared_(shared),
        logit_(logit),
        run_(split.run),
        rank_(link.rank()),
        parts_(split.parts),
        first_(rank_ * kRowThreads * split.run) {
    const int left = split.vocab - first_, mine = kRowThreads * split.run;
    size_ = left < 0 ? 0 : left < mine ? left : mine;
  }

  __device__ int rank() const { return rank_; }
  __device__ int parts() const { return parts_; }
  __device__ int first() const { return first_; }
  __device__ int size() const { return size_; }
  __device__ float& logit(int i) const { return logit_[i]; }
  /// Makes logit() that of another row, of the same size.
  __device__ void use(float* logit) { logit_ = logit; }
  /// The block that has a token.
  __device__ int owner(int32_t id) const { return id / (kRowThreads * run_); }
  /// Whether each() calls with i in this thread.
  __device__ bool is_mine(int i) const {
    return i >= 0 && i < size_ && i / run_ == static_cast<int>(threadIdx.x);
  }
  /// As of the link.
  __device__ void sync() { link_.sync(); }
  template <class T>
  __device__ T* own(T* shared) const {
    return link_.own(shared);
  }
  template <class T>
  __device__ T* peer(T* shared, int rank) const {
    return link_.peer(shared, rank);
  }
  template <class T>
  __device__ void publish(T& shared) {
    link_.publish(shared);
  }

  /// Calls f(i) for this thread's part of 0 .. size(), in ascending order; kUnroll calls side by
  /// side.
  template <int kUnroll = 1, class F>
  __device__ void each(F&& f) const {
    const int begin = static_cast<int>(threadIdx.x) * run_;
    const int n = size_ - begin < run_ ? size_ - begin : run_;
#pragma unroll kUnroll
    for (int j = 0; j < n; ++j) f(begin + j);
  }

  /// Reads this block's part of the row; the largest logit of the whole row. Without kKeep, logit()
  /// has nothing to return.
  template <bool kKeep = true>
  __device__ Best load(const float* row) {
    return best(read<kKeep>(row, logit_));
  }

  /// Reads this block's part of a row into `to`, laid out as logit(); the best of what this thread
  /// has read.
  template <bool kKeep = true>
  __device__ Best read(const float* row, float* to) const {
    const float* in = row + first_;
    Best mine{0, 0};
    int done = 0;
    if (reinterpret_cast<uintptr_t>(in) % 16 == 0) {
      constexpr int kInFlight = 4;  // vectors that a thread waits for at once
      constexpr int kStride = kRowThreads * 4;
      const int packed = size_ / 4 * 4;
      done = packed;
      for (int i = static_cast<int>(threadIdx.x) * 4; i < packed; i += kInFlight * kStride) {
        float4 v[kInFlight];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u)
          if (i + u * kStride < packed)
            v[u] = *reinterpret_cast<const float4*>(in + i + u * kStride);
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          const int at = i + u * kStride;
          if (at >= packed) continue;
          if constexpr (kKeep) *reinterpret_cast<float4*>(to + at) = v[u];
          mine.consider(v[u].x, first_ + at);
          mine.consider(v[u].y, first_ + at + 1);
          mine.consider(v[u].z, first_ + at + 2);
          mine.consider(v[u].w, first_ + at + 3);
        }
      }
    }
    for (int i = done + static_cast<int>(threadIdx.x); i < size_; i += kRowThreads) {
      if constexpr (kKeep) to[i] = in[i];
      mine.consider(in[i], first_ + i);
    }
    return mine;
  }

  /// The best of what the threads of all blocks found. All blocks then see the earlier writes to
  /// shared memory.
  __device__ Best best(Best mine) {
    Best only[1] = {mine};
    bests(only);
    return only[0];
  }
  template <int kN>
  __device__ void bests(Best (&mine)[kN]) {
    uint64_t x[kN];
    for (int k = 0; k < kN; ++k) x[k] = pack(mine[k]);
    combine(x, [](uint64_t b) { return pack(unpack(b).of_warp()); });
    for (int k = 0; k < kN; ++k) mine[k] = unpack(x[k]);
  }

  /// Replaces each number by its sum over all threads of all blocks.
  template <int kN>
  __device__ void totals(uint64_t (&mine)[kN]) {
    combine(mine, sum_of_warp);
  }

  /// Replaces each number by what of_warp, a reduction over the lanes of a warp of which 0 is the
  /// neutral element, makes of those of all threads of all blocks.
  template <int kN, class OfWarp>
  __device__ void combine(uint64_t (&x)[kN], OfWarp&& of_warp) {
    static_assert(kN <= RowShared::kWords);
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      x[k] = of_warp(x[k]);
      if (lane() == 0) shared_.of_warp[k][warp()] = x[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      if (warp() != k) continue;
      const uint64_t block = of_warp(lane() < kRowWarps ? shared_.of_warp[k][lane()] : 0);
      if (lane() == 0) *own(&shared_.of_block[turn_][k]) = block;
    }
    sync();
#pragma unroll
    for (int k = 0; k < kN; ++k) x[k] = of_warp(theirs(k));
    turn_ ^= 1;
  }

  /// The sum over all threads of all blocks, and over those before this one.
  __device__ RowSum sum(uint64_t mine) {
    const RowSum block = sum_in_block(mine);
    if (threadIdx.x == 0) *own(&shared_.of_block[turn_][0]) = block.total;
    sync();
    const uint64_t blocks = inclusive_sum(theirs(0));
    turn_ ^= 1;
    const uint64_t before = __shfl_sync(kAllLanes, blocks, rank_ > 0 ? rank_ - 1 : 0);
    return {(rank_ > 0 ? before : 0) + block.before, __shfl_sync(kAllLanes, blocks, kWarp - 1)};
  }

  /// The sum over all threads of this block, and over those before this one. A barrier must come
  /// between this and the next sum or best.
  __device__ RowSum sum_in_block(uint64_t mine) {
    const uint64_t to_here = inclusive_sum(mine);
    if (lane() == kWarp - 1) shared_.of_warp[0][warp()] = to_here;
    __syncthreads();
    const uint64_t warps = inclusive_sum(lane() < kRowWarps ? shared_.of_warp[0][lane()] : 0);
    const uint64_t before = __shfl_sync(kAllLanes, warps, warp() > 0 ? warp() - 1 : 0);
    return {(warp() > 0 ? before : 0) + to_here - mine,
            __shfl_sync(kAllLanes, warps, kRowWarps - 1)};
  }

  /// The first id, in ascending order, at which the sum of measure(i) exceeds wanted(total): in all
  /// lanes of one warp of the group; -1 in all others. `mine` is the sum over this thread's part.
  template <class Measure, class Wanted>
  __device__ int find_first(uint64_t mine, Measure&& measure, Wanted&& wanted) {
    const RowSum s = sum(mine);
    const uint64_t target = wanted(s.total);
    const unsigned holders =
        __ballot_sync(kAllLanes, s.before <= target && target - s.before < mine);
    if (holders == 0) return -1;
    const int holder = __ffs(static_cast<int>(holders)) - 1;
    uint64_t rest = __shfl_sync(kAllLanes, target - s.before, holder);
    const int begin = (warp() * kWarp + holder) * run_;
    for (int j = lane();; j += kWarp) {
      const bool inside = j < run_ && begin + j < size_;
      const uint64_t to_here = inclusive_sum(inside ? measure(begin + j) : 0);
      const unsigned beyond = __ballot_sync(kAllLanes, to_here > rest);
      if (beyond != 0) return first_ + begin + j - lane() + __ffs(static_cast<int>(beyond)) - 1;
      rest -= __shfl_sync(kAllLanes, to_here, kWarp - 1);
    }
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x % kWarp); }
  __device__ static int warp() { return static_cast<int>(threadIdx.x / kWarp); }
  __device__ static uint64_t pack(Best b) {
    return uint64_t{b.key} << 32 | static_cast<uint32_t>(b.id);
  }
  __device__ static Best unpack(uint64_t x) {
    return {static_cast<uint32_t>(x >> 32), static_cast<int32_t>(x)};
  }
  /// What block `lane` wrote as its word k; 0 in the lanes beyond the last block.
  __device__ uint64_t theirs(int k) const {
    return lane() < parts_ ? *peer(&shared_.of_block[turn_][k], lane()) : 0;
  }

  RowLink link_;
  RowShared& shared_;
  float* logit_;
  int run_, rank_, parts_, first_, size_;
  int turn_ = 0;
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
