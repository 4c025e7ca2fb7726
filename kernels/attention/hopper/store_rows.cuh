#pragma once
// The end of a tile: sums of a warpgroup's registers to global memory.
#include "base/log2.h"
#include "kernels/attention/hopper/softmax.cuh"

namespace tandem::hopper {

/// Four words of each of four neighbouring lanes, transposed: lane t ends with word t of lanes
/// 0..3.
__device__ inline void transpose_quad(uint32_t (&w)[4]) {
  const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (t & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t got = __shfl_xor_sync(cuda::kAllLanes, upper ? w[i] : w[i + bit], bit);
      (upper ? w[i] : w[i + bit]) = got;
    }
  }
}

/// One row of a thread's sums, half h, times `by`, to `row` of d values. All lanes take part;
/// `write` says whether the row is theirs to write. f32: four lanes write 32 bytes next to each
/// other; bf16: each lane 16, four lanes 64.
template <int kDim>
__device__ void store_row(float* row, const float (&o)[kDim / 2], int h, float by, bool write) {
  if (!write) return;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const float2 two = {o[4 * j + 2 * h] * by, o[4 * j + 2 * h + 1] * by};
    *reinterpret_cast<float2*>(row + 8 * j + 2 * (threadIdx.x % 4)) = two;
  }
}
template <int kDim>
__device__ void store_row(__nv_bfloat16* row, const float (&o)[kDim / 2], int h, float by,
                          bool write) {
#pragma unroll
  for (int j = 0; j < kDim / 8; j += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i] = cuda::pack_bf16(o[4 * (j + i) + 2 * h] * by, o[4 * (j + i) + 2 * h + 1] * by);
    transpose_quad(w);
    if (write)
      *reinterpret_cast<uint4*>(row + 8 * (j + threadIdx.x % 4)) =
          make_uint4(w[0], w[1], w[2], w[3]);
  }
}

/// Writes a tile's 64 queries of one group. `query` is the thread's first, in the tile.
template <int kDim, class Out>
__device__ void store_tile(const AttentionParams& p, const Sequence& s, const Tile& tile, int shift,
                           int query, const float (&o)[kDim / 2], RowState& state) {
  state.finish();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int in_tile = query + 8 * h;
    const int row = tile.row + (in_tile >> shift);
    const int head = (tile.head_block << shift) + (in_tile & ((1 << shift) - 1));
    const int64_t at = static_cast<int64_t>(s.first_row + row) * p.n_heads + head;
    const bool write = row < s.n_rows;
    const float sum = state.sum[h];
    store_row<kDim>(static_cast<Out*>(p.out) + at * kDim, o, h, sum > 0 ? 1.0f / sum : 0.0f, write);
    if (write && p.lse != nullptr && threadIdx.x % 4 == 0)
      p.lse[at] = sum > 0 ? fmaf(state.max[h], p.scale, __log2f(sum) * kLn2) : -kInf;
  }
}

}  // namespace tandem::hopper
