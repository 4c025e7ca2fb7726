// Before the products of attention's backward pass: dout . out of every query, and the list of
// tiles.
#include "base/log2.h"
#include "kernels/attention/backward_tiles.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;

/// A warp a query and head, heads side by side.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sums_of_rows_kernel(const __grid_constant__ AttentionBackwardParams p, float* lse, float* sums,
                        int n_rows) {
  cuda::start_after_previous();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp;
  const auto row = static_cast<int>(at / p.n_heads), head = static_cast<int>(at % p.n_heads);
  if (row >= p.row_begin[p.n_seqs]) return;
  constexpr int kEach = 4 / sizeof(T);  // d is even
  using Few = cuda::Vector<T, kEach>;
  const auto* dout = reinterpret_cast<const Few*>(static_cast<const T*>(p.dout) + at * p.head_dim);
  const auto* out = reinterpret_cast<const Few*>(static_cast<const T*>(p.out) + at * p.head_dim);
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  float sum = 0;
  for (int i = lane; i < p.head_dim / kEach; i += cuda::kWarp) {
    const Few a = dout[i], b = out[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      sum = fmaf(cuda::to_float(a.at[e]), cuda::to_float(b.at[e]), sum);
  }
  sum = cuda::warp_sum(sum);
  if (lane != 0) return;
  const int64_t to = static_cast<int64_t>(head) * n_rows + row;
  lse[to] = p.lse[at] * kLog2E;
  sums[to] = sum;
}

/// A block a sequence, a warp a tile: its place is after all tiles of a higher rank, and after
/// those of this rank of the sequences before.
__global__ void __launch_bounds__(kThreads)
    list_tiles_kernel(const int32_t* row_begin, int n_seqs, int tile_rows, BackwardTile* tiles,
                      int* n_tiles) {
  cuda::start_after_previous();
  const auto tiles_of = [&](int seq) {
    return (row_begin[seq + 1] - row_begin[seq] + tile_rows - 1) / tile_rows;
  };
  const int seq = static_cast<int>(blockIdx.x), own = tiles_of(seq);
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  // Of the first sequence's tiles one more, of rank -1: before it come all that there are.
  for (int rank = warp - (seq == 0 ? 1 : 0); rank < own; rank += kWarps) {
    int before = 0;
    for (int s = lane; s < n_seqs; s += cuda::kWarp) {
      const int n = tiles_of(s);
      before += max(0, n - 1 - rank) + (s < seq && n > rank ? 1 : 0);
    }
    for (int step = cuda::kWarp / 2; step > 0; step /= 2)
      before += __shfl_xor_sync(cuda::kAllLanes, before, step);
    if (lane != 0) continue;
    if (rank < 0)
      *n_tiles = before;
    else
      tiles[before] = {seq, rank};
  }
}

}  // namespace

BackwardWork prepare_backward(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                              int tile_rows, Stream stream) {
  const BackwardWorkspace w(l.workspace, l.n_rows, p.n_heads);
  cuda::with_act(p.act, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    cuda::launch(sums_of_rows_kernel<T>,
                 cuda::blocks_for(static_cast<int64_t>(l.n_rows) * p.n_heads, kWarps), kThreads,
                 stream, p, w.lse, w.sums, l.n_rows);
  });
  cuda::launch(list_tiles_kernel, static_cast<unsigned>(p.n_seqs), kThreads, stream, p.row_begin,
               p.n_seqs, tile_rows, w.tiles, w.n_tiles);
  const int64_t of_bounds =
      static_cast<int64_t>(p.n_seqs) * ((l.max_rows_a_seq + tile_rows - 1) / tile_rows);
  const int64_t of_rows = static_cast<int64_t>(l.n_rows) / tile_rows + p.n_seqs;
  int64_t most = of_bounds < of_rows ? of_bounds : of_rows;
  most = most < l.n_rows ? most : l.n_rows;
  return {w.lse, w.sums, w.n_tiles, w.tiles, l.n_rows, static_cast<int>(most)};
}

}  // namespace tandem
