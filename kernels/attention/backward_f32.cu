// Attention's backward pass in f32 on plain multiply-adds: exact enough to check other kernels by,
// and enough for small models. 16 rows a block, 16 columns at a time; a thread has one pair of
// them, then every 16th element of one row's gradients.
#include "kernels/attention/backward_tiles.cuh"
#include "kernels/attention/few_rows_plan.h"

namespace tandem::portable {
namespace {

constexpr int kTile = 16, kThreads = kTile * kTile, kEach = kMostHeadDim / kTile;

/// Rows and columns of two tensors, k and v or q and dout: for keys the rows are of the first two,
/// for queries of the others.
struct Memory {
  float *rows[2], *columns[2];  // [16, d + 1]: threads that read one column use different banks
  float *shares, *ds;           // [16 rows, 16 columns]

  static size_t bytes(int d) {
    return static_cast<size_t>(4 * kTile * (d + 1) + 2 * kTile * kTile) * sizeof(float);
  }
  __device__ Memory(float* at, int d)
      : rows{at, at + kTile * (d + 1)},
        columns{at + 2 * kTile * (d + 1), at + 3 * kTile * (d + 1)},
        shares(at + 4 * kTile * (d + 1)),
        ds(shares + kTile * kTile) {}
};

/// Rows [first, first + 16) of the document in two tensors, zeros beyond its end. `keys`: of k and
/// v, else of q and dout of `head`.
__device__ void load(float* const (&to)[2], const AttentionBackwardParams& p,
                     const BackwardBlock& b, bool keys, int head, int first) {
  const int d = p.head_dim;
  const auto* from_0 = static_cast<const float*>(keys ? p.k_pool : p.q);
  const auto* from_1 = static_cast<const float*>(keys ? p.v_pool : p.dout);
  for (int i = threadIdx.x; i < kTile * d; i += kThreads) {
    const int row = i / d, column = i % d, at = row * (d + 1) + column;
    const bool exists = first + row < b.n_rows;
    const int64_t from =
        !exists ? 0 : (keys ? b.key_at(p, first + row) : b.query_at(p, head, first + row)) * d;
    to[0][at] = exists ? from_0[from + column] : 0.0f;
    to[1][at] = exists ? from_1[from + column] : 0.0f;
  }
}

__device__ float dot(const float* a, const float* b, int d) {
  float sum = 0;
  for (int c = 0; c < d; ++c) sum = fmaf(a[c], b[c], sum);
  return sum;
}

__global__ void __launch_bounds__(kThreads, 2)
    backward_f32_kernel(const __grid_constant__ AttentionBackwardParams p,
                        const __grid_constant__ BackwardWork work) {
  extern __shared__ float memory[];
  cuda::wait_for_previous();
  const BackwardBlock b(p, work, kTile, static_cast<int>(blockIdx.x));
  if (!b.exists) return;
  const int d = p.head_dim;
  const Memory m(memory, d);
  const CausalWindow rule = b.rule(p);
  const int row = static_cast<int>(threadIdx.x) / kTile;
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const ColumnTiles tiles(p, b, kTile, kTile);
  ColumnStep step{b.head, 0};
  load(m.rows, p, b, b.of_keys, b.head, b.row);
  float first[kEach] = {}, second[kEach] = {};  // dk and dv, or dq
  for (int n = 0; n < tiles.steps; ++n, step.next(tiles)) {
    const int column = (tiles.first + step.tile) * kTile;
    __syncthreads();
    load(m.columns, p, b, !b.of_keys, step.head, column);
    __syncthreads();
    const int i = b.of_keys ? column + lane : b.row + row;
    const int j = b.of_keys ? b.row + row : column + lane;
    float share = 0, ds = 0;
    if (rule.pair(i, j)) {
      const float score = dot(m.rows[0] + row * (d + 1), m.columns[0] + lane * (d + 1), d);
      const float dv = dot(m.rows[1] + row * (d + 1), m.columns[1] + lane * (d + 1), d);
      share = expf(fmaf(score, p.scale, -p.lse[b.query_at(p, step.head, i)]));
      ds = share * (dv - work.sums[b.stat_at(work, step.head) + i]) * p.scale;
    }
    m.shares[threadIdx.x] = share;
    m.ds[threadIdx.x] = ds;
    __syncthreads();
    for (int t = 0; t < kTile; ++t) {
      const float of_share = m.shares[row * kTile + t], of_ds = m.ds[row * kTile + t];
      const float *a = m.columns[0] + t * (d + 1) + lane, *c = m.columns[1] + t * (d + 1) + lane;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (e * kTile + lane >= d) break;
        first[e] = fmaf(of_ds, a[e * kTile], first[e]);
        if (b.of_keys) second[e] = fmaf(of_share, c[e * kTile], second[e]);
      }
    }
  }
  if (b.row + row >= b.n_rows) return;
  float* out = static_cast<float*>(p.dqkv) + b.gradient_at(p, b.row + row) * d + lane;
  const int64_t to_dv = static_cast<int64_t>(p.n_kv_heads) * d;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (e * kTile + lane >= d) break;
    out[e * kTile] = first[e];
    if (b.of_keys) out[to_dv + e * kTile] = second[e];
  }
}

}  // namespace

void backward_f32(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                  Stream stream) {
  const BackwardWork work = prepare_backward(p, l, kTile, stream);
  const size_t bytes = Memory::bytes(p.head_dim);
  (void)cudaFuncSetAttribute(backward_f32_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(backward_f32_kernel, work.pieces(p), kThreads, bytes, 1, stream, p, work);
}

}  // namespace tandem::portable
