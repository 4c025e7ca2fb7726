#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/page/query_ring.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;
// Rows are moved in accesses of 16 bytes, or of 2 where a row is no multiple of 16.
constexpr int kWide = 16;
constexpr int kNarrow = 2;

template <int kBytes>
using Chunk = cuda::Vector<unsigned short, kBytes / 2>;

template <int kBytes>
__device__ Chunk<kBytes>* chunks(void* rows, int64_t bytes) {
  return reinterpret_cast<Chunk<kBytes>*>(static_cast<char*>(rows) + bytes);
}

/// A block a row. Rows beyond those of the last sequence belong to none.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) write_queries(const WriteQueriesParams p) {
  cuda::start_after_previous();
  const int row = static_cast<int>(blockIdx.x);
  if (row >= p.row_begin[p.n_seqs]) return;
  int seq = 0, end = p.n_seqs;  // row_begin[seq] <= row < row_begin[end]
  while (end - seq > 1) {
    const int middle = (seq + end) / 2;
    (p.row_begin[middle] <= row ? seq : end) = middle;
  }
  if (p.row_begin[seq + 1] - row > p.rings.capacity) return;  // later rows have its place
  const int token =
      p.base[seq] + (p.tentative == nullptr ? 0 : p.tentative[seq]) + row - p.row_begin[seq];
  const int n = p.rings.row_bytes / kBytes;
  const auto* from = reinterpret_cast<const Chunk<kBytes>*>(p.q) + int64_t{row} * n;
  auto* to = chunks<kBytes>(p.rings.rows, ring_offset(p.rings, p.slot[seq], p.layer, token));
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) to[i] = from[i];
}

/// A thread a chunk of a row, for all moves of a sequence under a layer: it has read each row
/// before a later move writes there.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) move_queries(const MoveQueriesParams p) {
  cuda::start_after_previous();
  const int chunk = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int layer = static_cast<int>(blockIdx.y), seq = static_cast<int>(blockIdx.z);
  if (chunk >= p.rings.row_bytes / kBytes) return;
  const int root = p.position[seq] - 1, n = min(p.n_accepted[seq], p.max_moves);
  for (int i = 0; i < n; ++i) {
    const int node = p.path[int64_t{seq} * p.n_nodes + i];
    if (node >= p.n_nodes_held || node == i + 1) continue;
    const auto at = [&](int token) {
      return chunks<kBytes>(p.rings.rows, ring_offset(p.rings, p.slot[seq], layer, token)) + chunk;
    };
    *at(root + i + 1) = *at(root + node);
  }
}

}  // namespace

void write_queries_cuda(const WriteQueriesParams& p, Stream stream) {
  if (p.n_rows == 0 || p.n_seqs == 0) return;
  cuda::launch(p.rings.row_bytes % kWide == 0 ? write_queries<kWide> : write_queries<kNarrow>,
               dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
}

void move_queries_cuda(const MoveQueriesParams& p, Stream stream) {
  if (p.n_seqs * p.max_moves == 0) return;
  const bool wide = p.rings.row_bytes % kWide == 0;
  cuda::launch(wide ? move_queries<kWide> : move_queries<kNarrow>,
               dim3(cuda::blocks_for(p.rings.row_bytes / (wide ? kWide : kNarrow), kThreads),
                    static_cast<unsigned>(p.rings.n_layers), static_cast<unsigned>(p.n_seqs)),
               kThreads, stream, p);
}

}  // namespace tandem
