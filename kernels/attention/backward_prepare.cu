// Before the products of attention's backward pass: dout . out of every query, and the list of
// tiles.
#include "base/log2.h"
#include "kernels/attention/backward_tiles.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / cuda::kWarp;
/// Lanes of a query and head: each has enough loads under way to keep the memory busy.
constexpr int kTeam = 8, kTeams = kThreads / kTeam;

/// A team a query and head, heads side by side; kEach elements a load. Rows after the documents
/// get numbers, too, which are never read.
template <class T, int kEach>
__device__ void sum_row(const AttentionBackwardParams& p, const BackwardWorkspace& w, int n_rows,
                        int at) {
  using Few = cuda::Vector<T, kEach>;
  const bool exists = at < n_rows * p.n_heads;
  const int64_t from = static_cast<int64_t>(at) * p.head_dim;
  const auto* dout = reinterpret_cast<const Few*>(static_cast<const T*>(p.dout) + from);
  const auto* out = reinterpret_cast<const Few*>(static_cast<const T*>(p.out) + from);
  const int lane = static_cast<int>(threadIdx.x) % kTeam;
  const float lse = exists && lane == 0 ? p.lse[at] : 0.0f;
  float sum = 0;
#pragma unroll 2
  for (int i = lane; i < (exists ? p.head_dim / kEach : 0); i += kTeam) {
    const Few a = dout[i], b = out[i];
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      sum = fmaf(cuda::to_float(a.at[e]), cuda::to_float(b.at[e]), sum);
  }
#pragma unroll
  for (int step = kTeam / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(cuda::kAllLanes, sum, step);
  if (!exists || lane != 0) return;
  const int64_t to = static_cast<int64_t>(at % p.n_heads) * n_rows + at / p.n_heads;
  w.lse[to] = lse * kLog2E;
  w.sums[to] = sum;
}

/// A block a sequence, a warp a tile: its place is after all tiles of a higher rank, and after
/// those of this rank of the sequences before.
__device__ void list_tiles(const AttentionBackwardParams& p, const BackwardWorkspace& w,
                           int tile_rows, int seq) {
  const auto tiles_of = [&](int s) {
    return (p.row_begin[s + 1] - p.row_begin[s] + tile_rows - 1) / tile_rows;
  };
  const int own = tiles_of(seq);
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / cuda::kWarp;
  // Of the first sequence's tiles one more, of rank -1: before it come all that there are.
  for (int rank = warp - (seq == 0 ? 1 : 0); rank < own; rank += kWarps) {
    int before = 0;
    for (int s = lane; s < p.n_seqs; s += cuda::kWarp) {
      const int n = tiles_of(s);
      before += max(0, n - 1 - rank) + (s < seq && n > rank ? 1 : 0);
    }
    for (int step = cuda::kWarp / 2; step > 0; step /= 2)
      before += __shfl_xor_sync(cuda::kAllLanes, before, step);
    if (lane != 0) continue;
    if (rank < 0)
      *w.counts = {before, 0};
    else
      w.tiles[before] = {seq, rank};
  }
}

/// Blocks of sequences, then those of rows.
template <class T, int kEach>
__global__ void __launch_bounds__(kThreads)
    prepare_backward_kernel(const __grid_constant__ AttentionBackwardParams p,
                            const __grid_constant__ BackwardWorkspace w, int n_rows,
                            int tile_rows) {
  cuda::start_after_previous();
  const auto block = static_cast<int>(blockIdx.x);
  if (block < p.n_seqs)
    list_tiles(p, w, tile_rows, block);
  else
    sum_row<T, kEach>(p, w, n_rows,
                      (block - p.n_seqs) * kTeams + static_cast<int>(threadIdx.x) / kTeam);
}

}  // namespace

BackwardWork prepare_backward(const AttentionBackwardParams& p, const AttentionBackwardLaunch& l,
                              int tile_rows, Stream stream) {
  const BackwardWorkspace w(l.workspace, l.n_rows, p.n_heads);
  cuda::with_act(p.act, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kMost = 16 / sizeof(T), kLeast = 4 / sizeof(T);  // d is even
    const bool packs = cuda::packable<T>(p.head_dim, p.dout, p.out);
    const int64_t row_heads = static_cast<int64_t>(l.n_rows) * p.n_heads;
    cuda::launch(packs ? prepare_backward_kernel<T, kMost> : prepare_backward_kernel<T, kLeast>,
                 static_cast<unsigned>(p.n_seqs) + cuda::blocks_for(row_heads, kTeams), kThreads,
                 stream, p, w, l.n_rows, tile_rows);
  });
  const int64_t of_bounds =
      static_cast<int64_t>(p.n_seqs) * ((l.max_rows_a_seq + tile_rows - 1) / tile_rows);
  const int64_t of_rows = static_cast<int64_t>(l.n_rows) / tile_rows + p.n_seqs;
  int64_t most = of_bounds < of_rows ? of_bounds : of_rows;
  most = most < l.n_rows ? most : l.n_rows;
  return {w.lse, w.sums, w.counts, w.tiles, l.n_rows, static_cast<int>(most)};
}

}  // namespace tandem
