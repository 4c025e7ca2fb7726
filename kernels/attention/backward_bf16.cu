// Attention's backward pass in bf16 on the portable matrix instruction: any even d. A block has a
// tile of rows in shared memory and meets one tile of columns after another, whose copies run
// ahead. A warp computes the scores of its 16 rows: they stay in registers, as sums first and then
// as an operand of the products with the columns.
#include "base/log2.h"
#include "kernels/attention/backward_tiles.cuh"
#include "kernels/attention/rows_bf16.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::portable {
namespace {

constexpr int kRows = kPageTokens;  // of a block, 16 a warp

/// kWidth: d rounded up to a compiled width; beyond d lie zeros. Of each 16 rows kHalves
/// warps compute the scores, each for a part of the gradients' width, where all of it would take
/// too many registers.
template <int kWidth_, int kColumns_, int kHalves_, int kBlocks_>
struct Shape {
  static constexpr int kWidth = kWidth_, kColumns = kColumns_, kBlocks = kBlocks_;
  static constexpr int kRowWarps = kRows / 16, kThreads = kRowWarps * kHalves_ * cuda::kWarp;
  static constexpr int kOwn = kWidth / kHalves_;  // of the gradients' width, a warp's
  static constexpr int kRowBytes = 2 * kWidth;
  static constexpr int kRowsBytes = kRows * kRowBytes, kColumnsBytes = kColumns * kRowBytes;
  // A stage: columns of two tensors, then their lse and sums.
  static constexpr int kStageBytes = 2 * kColumnsBytes + 2 * kColumns * int{sizeof(float)};
  static constexpr int kBytes = 2 * kRowsBytes + 2 * kStageBytes;
  static_assert(kStageBytes % 128 == 0 && kOwn % 64 == 0, "columns_at steps by xor");
};

/// The two tensors of a side: k and v, or q and dout.
struct Sides {
  const __nv_bfloat16* at[2];
  bool keys;

  __device__ Sides(const AttentionBackwardParams& p, bool of_keys)
      : at{static_cast<const __nv_bfloat16*>(of_keys ? p.k_pool : p.q),
           static_cast<const __nv_bfloat16*>(of_keys ? p.v_pool : p.dout)},
        keys(of_keys) {}
};

/// Starts copying rows [first, first + kCount) of the document from both tensors of a side, zeros
/// beyond its end.
template <class S, int kCount>
__device__ void copy_side(uint32_t to, const AttentionBackwardParams& p, const BackwardBlock& b,
                          const Sides& side, int head, int first, bool aligned) {
#pragma unroll
  for (int t = 0; t < 2; ++t)
    copy_any_rows<S, kCount>(to + t * kCount * S::kRowBytes, p.head_dim, aligned, [&](int row) {
      const int at = first + row;
      if (at >= b.n_rows) return static_cast<const __nv_bfloat16*>(nullptr);
      return side.at[t] + (side.keys ? b.key_at(p, at) : b.query_at(p, head, at)) * p.head_dim;
    });
}

/// Starts copying lse and sums of queries [first, first + kColumns) of a head.
template <class S>
__device__ void copy_stats(uint32_t to, const BackwardWork& work, const BackwardBlock& b, int head,
                           int first) {
  const int i = static_cast<int>(threadIdx.x), at = first + i % S::kColumns;
  if (i >= 2 * S::kColumns) return;
  const float* from = (i < S::kColumns ? work.lse : work.sums) + b.stat_at(work, head) + at;
  cuda::copy_async<4>(to + i * sizeof(float), from, at < b.n_rows);
}

/// sums[16 rows, kColumns] = rows columns^T. Both places are lanes'.
template <class S>
__device__ void products(float (&sums)[S::kColumns / 8][4], uint32_t rows, uint32_t columns) {
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[j][e] = 0;
#pragma unroll
  for (int k = 0; k < S::kWidth / 16; ++k) {
    uint32_t a[4];
    cuda::load_tiles(a, columns_at<S>(rows, k));
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; j += 2) {
      uint32_t b[4];
      cuda::load_tiles(b, columns_at<S>(columns, k) + j * 8 * S::kRowBytes);
      cuda::mma_bf16(sums[j], a, b[0], b[1]);
      cuda::mma_bf16(sums[j + 1], a, b[2], b[3]);
    }
  }
}

/// sums[16 rows, kOwn] += weights[16 rows, kColumns] columns.
template <class S>
__device__ void add_products(float (&sums)[S::kOwn / 8][4],
                             const float (&weights)[S::kColumns / 8][4], uint32_t columns) {
#pragma unroll
  for (int k = 0; k < S::kColumns / 16; ++k) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] =
          cuda::pack_bf16(weights[2 * k + i / 2][i % 2 * 2], weights[2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int j = 0; j < S::kOwn / 8; j += 2) {
      uint32_t b[4];
      cuda::load_tiles_transposed(b, columns_at<S>(columns, j / 2) + k * 16 * S::kRowBytes);
      cuda::mma_bf16(sums[j], a, b[0], b[1]);
      cuda::mma_bf16(sums[j + 1], a, b[2], b[3]);
    }
  }
}

/// Writes a warp's gradients, whose first row is `row` of the document and whose width begins at
/// `from`; `further` vectors after those of q or k.
template <class S>
__device__ void store(const AttentionBackwardParams& p, const BackwardBlock& b,
                      const float (&sums)[S::kOwn / 8][4], float by, int row, int from,
                      int further) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int own = row + lane / 4 + 8 * h;
    if (own >= b.n_rows) continue;
    auto* out =
        static_cast<__nv_bfloat16*>(p.dqkv) + (b.gradient_at(p, own) + further) * p.head_dim;
#pragma unroll
    for (int j = 0; j < S::kOwn / 8; ++j) {
      const int column = from + 8 * j + 2 * (lane % 4);
      if (column < p.head_dim)
        *reinterpret_cast<uint32_t*>(out + column) =
            cuda::pack_bf16(sums[j][2 * h] * by, sums[j][2 * h + 1] * by);
    }
  }
}

/// The lse and sums that a lane needs: of its two rows where these are queries, else of columns.
template <class S, bool kKeys>
struct Stats {
  float lse[2] = {}, sums[2] = {};
  const float* columns = nullptr;  // of the stage

  __device__ float lse_of(int j, int e) const {
    return kKeys ? columns[8 * j + e % 2] : lse[e / 2];
  }
  __device__ float sum_of(int j, int e) const {
    return kKeys ? columns[S::kColumns + 8 * j + e % 2] : sums[e / 2];
  }
};

template <class S, bool kKeys>
__device__ void run(const AttentionBackwardParams& p, const BackwardWork& work,
                    const BackwardBlock& b, bool aligned, unsigned char* memory) {
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = __shfl_sync(cuda::kAllLanes, static_cast<int>(threadIdx.x) / cuda::kWarp, 0);
  const int warp_row = warp % S::kRowWarps * 16, row = b.row + warp_row;
  const int own = warp / S::kRowWarps * S::kOwn;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint32_t stages = shared + 2 * S::kRowsBytes;
  const uint32_t by_left = lane_place<S>(false), by_pairs = lane_place<S>(true);
  const CausalWindow rule = b.rule(p);
  const ColumnTiles tiles(p, b, kRows, S::kColumns);
  ColumnStep step{b.head, 0}, ahead = step;
  const Sides rows(p, kKeys), columns(p, !kKeys);
  const auto copy_step = [&](int n) {
    if (n < tiles.steps) {
      const uint32_t to = stages + n % 2 * S::kStageBytes;
      const int first = (tiles.first + ahead.tile) * S::kColumns;
      copy_side<S, S::kColumns>(to, p, b, columns, ahead.head, first, aligned);
      if constexpr (kKeys) copy_stats<S>(to + 2 * S::kColumnsBytes, work, b, ahead.head, first);
      ahead.next(tiles);
    }
    cuda::copies_commit();  // though empty: groups are counted
  };
  copy_side<S, kRows>(shared, p, b, rows, b.head, b.row, aligned);
  copy_step(0);
  Stats<S, kKeys> stats;
  if constexpr (!kKeys)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = min(row + lane / 4 + 8 * h, b.n_rows - 1);
      stats.lse[h] = work.lse[b.stat_at(work, b.head) + query];
      stats.sums[h] = work.sums[b.stat_at(work, b.head) + query];
    }
  const float to_log2 = p.scale * kLog2E;
  float first[S::kOwn / 8][4] = {};               // dk or dq, but for the scale
  float second[kKeys ? S::kOwn / 8 : 1][4] = {};  // dv
#pragma unroll 1
  for (int n = 0; n < tiles.steps; ++n, step.next(tiles)) {
    copy_step(n + 1);
    cuda::copies_wait<1>();
    __syncthreads();
    const int column = (tiles.first + step.tile) * S::kColumns;
    const int i = kKeys ? column : row, j = kKeys ? row : column;
    constexpr int kI = kKeys ? S::kColumns : 16, kJ = kKeys ? 16 : S::kColumns;
    if (!rule.none(i, kI, j, kJ)) {
      const uint32_t stage = stages + n % 2 * S::kStageBytes;
      float s[S::kColumns / 8][4], ds[S::kColumns / 8][4];
      products<S>(s, shared + warp_row * S::kRowBytes + by_left, stage + by_pairs);
      products<S>(ds, shared + S::kRowsBytes + warp_row * S::kRowBytes + by_left,
                  stage + S::kColumnsBytes + by_pairs);
      if constexpr (kKeys)
        stats.columns =
            reinterpret_cast<const float*>(memory + 2 * S::kRowsBytes + n % 2 * S::kStageBytes +
                                           2 * S::kColumnsBytes) +
            2 * (lane % 4);
      const bool all = rule.all(i, kI, j, kJ);
#pragma unroll
      for (int t = 0; t < S::kColumns / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int of_row = row + lane / 4 + e / 2 * 8;
          const int of_column = column + 8 * t + 2 * (lane % 4) + e % 2;
          float share = cuda::exp2_fast(fmaf(s[t][e], to_log2, -stats.lse_of(t, e)));
          if (!all && !rule.pair(kKeys ? of_column : of_row, kKeys ? of_row : of_column)) share = 0;
          s[t][e] = share;
          ds[t][e] = share * (ds[t][e] - stats.sum_of(t, e));
        }
      const uint32_t values = stage + own / 64 * 128 + by_left;
      if constexpr (kKeys) add_products<S>(second, s, values + S::kColumnsBytes);
      add_products<S>(first, ds, values);
    }
    __syncthreads();
  }
  store<S>(p, b, first, p.scale, row, own, 0);
  if constexpr (kKeys) store<S>(p, b, second, 1.0f, row, own, p.n_kv_heads);
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    backward_bf16_kernel(const __grid_constant__ AttentionBackwardParams p,
                         const __grid_constant__ BackwardWork work, const bool aligned) {
  extern __shared__ __align__(128) unsigned char memory[];
  cuda::wait_for_previous();
  const BackwardBlock b(p, work, kRows, static_cast<int>(blockIdx.x));
  if (!b.exists) return;
  if (b.of_keys)
    run<S, true>(p, work, b, aligned, memory);
  else
    run<S, false>(p, work, b, aligned, memory);
}

template <class S>
void launch(const AttentionBackwardParams& p, const BackwardWork& work, Stream stream) {
  const auto at_16 = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  const bool aligned =
      p.head_dim % 8 == 0 && at_16(p.q) && at_16(p.dout) && at_16(p.k_pool) && at_16(p.v_pool);
  const auto kernel = backward_bf16_kernel<S>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes);
  cuda::launch(kernel, work.pieces(p), S::kThreads, S::kBytes, 1, stream, p, work, aligned);
}

}  // namespace

void backward_bf16(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                   Stream stream) {
  const BackwardWork work = prepare_backward(p, l, kRows, stream);
  if (p.head_dim <= 64)
    launch<Shape<64, 32, 1, 3>>(p, work, stream);
  else if (p.head_dim <= 128)
    launch<Shape<128, 32, 1, 2>>(p, work, stream);
  else
    launch<Shape<256, 16, 2, 1>>(p, work, stream);
}

}  // namespace tandem::portable
