#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/page/page.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
// Rows are moved in accesses of 16 bytes, or of 2 where a row is no multiple of 16.
constexpr int kWide = 16;
constexpr int kNarrow = 2;

template <int kBytes>
using Chunk = cuda::Vector<unsigned short, kBytes / 2>;

/// Bytes of one page of one layer.
__host__ __device__ int64_t page_bytes(const PagePools& pools) {
  return int64_t{pools.n_kv_heads} * kPageTokens * pools.row_bytes;
}

/// K's pool of the layer plane / 2 for even planes, V's for odd ones.
__device__ char* pool_of(const PagePools& pools, unsigned plane) {
  return static_cast<char*>(plane % 2 == 0 ? pools.k : pools.v) +
         int64_t{plane / 2} * pools.n_pages * page_bytes(pools);
}

// Chunks of a page that a thread has in flight.
constexpr int kInFlight = 4;

template <int kBytes>
__global__ void __launch_bounds__(kThreads) copy_page(const CopyPageParams p) {
  cuda::start_after_previous();
  char* pool = pool_of(p.pools, blockIdx.y);
  const int64_t n = page_bytes(p.pools) / kBytes;
  const auto* in = reinterpret_cast<const Chunk<kBytes>*>(pool + p.from * page_bytes(p.pools));
  auto* out = reinterpret_cast<Chunk<kBytes>*>(pool + p.to * page_bytes(p.pools));
  const int64_t begin = int64_t{blockIdx.x} * kThreads * kInFlight + threadIdx.x;
  Chunk<kBytes> chunk[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u)
    if (begin + u * kThreads < n) chunk[u] = in[begin + u * kThreads];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u)
    if (begin + u * kThreads < n) out[begin + u * kThreads] = chunk[u];
}

// Moves whose tokens are read before the first of them is written.
constexpr int kMoves = 8;

/// One chunk of a row a thread, for all moves.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) move_tokens(const MoveTokensParams p) {
  cuda::start_after_previous();
  const int each_row = p.pools.row_bytes / kBytes;
  const int item = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (item >= p.pools.n_kv_heads * each_row) return;
  char* column = pool_of(p.pools, blockIdx.y) +
                 int64_t{item / each_row} * kPageTokens * p.pools.row_bytes +
                 item % each_row * kBytes;
  const auto at = [&](int32_t token) {
    return reinterpret_cast<Chunk<kBytes>*>(column + token / kPageTokens * page_bytes(p.pools) +
                                            int64_t{token % kPageTokens} * p.pools.row_bytes);
  };
  for (int begin = 0; begin < p.n_moves; begin += kMoves) {
    Chunk<kBytes> chunk[kMoves];
    Chunk<kBytes>* out[kMoves];
#pragma unroll
    for (int m = 0; m < kMoves; ++m) {
      out[m] = nullptr;
      if (begin + m >= p.n_moves) continue;
      const int32_t from = p.from_token[begin + m], to = p.to_token[begin + m];
      if (from < 0 || from == to) continue;
      chunk[m] = *at(from);
      out[m] = at(to);
    }
#pragma unroll
    for (int m = 0; m < kMoves; ++m)
      if (out[m] != nullptr) *out[m] = chunk[m];
  }
}

__global__ void __launch_bounds__(kThreads) path_moves(const PathMovesParams p) {
  cuda::start_after_previous();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= p.n_seqs * p.max_moves) return;
  const int seq = i / p.max_moves, step = i % p.max_moves;
  int32_t from = -1, to = -1;
  if (step < p.n_accepted[seq]) {
    const int node = p.path[int64_t{seq} * p.n_nodes + step];
    const auto place = [&](int after_root) {
      const int token = p.position[seq] - 1 + after_root;
      return p.page_table[int64_t{p.slot[seq]} * p.max_pages + token / kPageTokens] * kPageTokens +
             token % kPageTokens;
    };
    if (node < p.n_nodes_held && node != step + 1) {
      from = place(node);
      to = place(step + 1);
    }
  }
  p.from_token[i] = from;
  p.to_token[i] = to;
}

// Releases nothing early: kernels that begin ahead of the one before them may read page tables.
__global__ void __launch_bounds__(kThreads) set_pages(const SetPagesParams p) {
  cuda::wait_for_previous();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < p.n_changes) p.table[p.changes[i].cell] = p.changes[i].page;
}

unsigned planes(const PagePools& pools) { return static_cast<unsigned>(2 * pools.n_layers); }

}  // namespace

void copy_page_cuda(const CopyPageParams& p, Stream stream) {
  if (p.from == p.to) return;
  const bool wide = p.pools.row_bytes % kWide == 0;
  const int64_t chunks = page_bytes(p.pools) / (wide ? kWide : kNarrow);
  cuda::launch(wide ? copy_page<kWide> : copy_page<kNarrow>,
               dim3(cuda::blocks_for(chunks, kThreads * kInFlight), planes(p.pools)), kThreads,
               stream, p);
}

void move_tokens_cuda(const MoveTokensParams& p, Stream stream) {
  if (p.n_moves == 0) return;
  const bool wide = p.pools.row_bytes % kWide == 0;
  const int chunks = p.pools.n_kv_heads * (p.pools.row_bytes / (wide ? kWide : kNarrow));
  cuda::launch(wide ? move_tokens<kWide> : move_tokens<kNarrow>,
               dim3(cuda::blocks_for(chunks, kThreads), planes(p.pools)), kThreads, stream, p);
}

void path_moves_cuda(const PathMovesParams& p, Stream stream) {
  if (p.n_seqs * p.max_moves == 0) return;
  cuda::launch(path_moves, cuda::blocks_for(p.n_seqs * p.max_moves, kThreads), kThreads, stream, p);
}

void set_pages_cuda(const SetPagesParams& p, Stream stream) {
  if (p.n_changes == 0) return;
  cuda::launch(set_pages, cuda::blocks_for(p.n_changes, kThreads), kThreads, stream, p);
}

}  // namespace tandem
