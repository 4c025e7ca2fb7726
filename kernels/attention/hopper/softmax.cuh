#pragma once
// Softmax of a tile of scores in the registers of a warpgroup, and the visibility rule over it.
#include "kernels/attention/hopper/tile_shape.cuh"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::hopper {

inline constexpr float kInf = INFINITY;

/// What the two rows of queries of a thread (8 apart) may see. Slots are positions: chains only.
struct RowsSeen {
  int begin[2], end[2];         // keys [begin, end) ...
  int sink_begin, sink_end[2];  // ... and [sink_begin, sink_end)
  int all_begin, all_end;       // keys that every row of the group sees: tiles within need no mask

  /// `row` of the group's first query, `query` of the group is this thread's first.
  __device__ RowsSeen(const AttentionParams& p, const Sequence& s, int row, int query, int shift) {
    const auto begin_at = [&](int x) {
      return p.window > 0 ? max(s.key_lo, x - p.window + 1) : s.key_lo;
    };
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int x = s.base + row + ((query + 8 * h) >> shift);
      end[h] = min(p.key_hi, x + 1);
      begin[h] = begin_at(x);
      sink_end[h] = p.window > 0 ? min(p.sinks, end[h]) : 0;
    }
    sink_begin = s.key_lo;
    all_begin = begin_at(s.base + row + (63 >> shift));
    all_end = min(p.key_hi, s.base + row + 1);
  }
};

/// Scores of keys that a row does not see become -inf, NaN included. `first` is the tile's first
/// key. Tiles that all rows see are left alone; a sink's tile pays for the whole rule.
template <int kCount>
__device__ inline void hide_keys(float (&s)[kCount], const RowsSeen& seen, int first) {
  constexpr int kKeys = 2 * kCount;
  const int column = first + 2 * static_cast<int>(threadIdx.x % 4);  // of s[0]
  if (first + kKeys > seen.all_end) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = seen.end[h] - column;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (i % 4 / 2 == h && i / 4 * 8 + i % 2 >= end) s[i] = -kInf;
    }
  }
  if (first < seen.all_begin) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int begin = seen.begin[h] - column;
      const int sink_begin = seen.sink_begin - column, sink_end = seen.sink_end[h] - column;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int key = i / 4 * 8 + i % 2;
        if (i % 4 / 2 == h && key < begin && (key < sink_begin || key >= sink_end)) s[i] = -kInf;
      }
    }
  }
}

/// Running softmax of a thread's two rows. The maximum is known to all four threads of a row, the
/// sum is this thread's share.
struct RowState {
  float max[2] = {-kInf, -kInf};  // of the raw scores
  float sum[2] = {0, 0};

  /// Turns scores into 2^(scale (s - max)) and leaves in `rescale` what sums so far are multiplied
  /// by. scale > 0. A row that has seen no key yet keeps max = -inf and gets zeros, so that leading
  /// tiles without a visible key leave no trace in its bits.
  template <int kCount>
  __device__ void step(float (&s)[kCount], float scale, float (&rescale)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = max[h];
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
        top = fmaxf(top, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, 2));
      const float from = top == -kInf ? 0.0f : top;
      rescale[h] = cuda::exp2_fast((max[h] - from) * scale);
      max[h] = top;
      const float shift = -from * scale;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * h + e];
          x = cuda::exp2_fast(fmaf(x, scale, shift));
        }
      float part = 0;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) part += s[4 * j + 2 * h] + s[4 * j + 2 * h + 1];
      sum[h] = sum[h] * rescale[h] + part;
    }
  }

  /// Adds up the four threads' shares.
  __device__ void finish() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(cuda::kAllLanes, sum[h], 1);
      sum[h] += __shfl_xor_sync(cuda::kAllLanes, sum[h], 2);
    }
  }
};

/// Probabilities in pairs of bf16, in the order in which wgmma takes A from registers.
template <int kCount>
__device__ inline void pack_probabilities(uint32_t (&a)[kCount], const float (&s)[2 * kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) a[i] = cuda::pack_bf16(s[2 * i], s[2 * i + 1]);
}

}  // namespace tandem::hopper
