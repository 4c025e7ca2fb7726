#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/attention/few_rows_mma.cuh"
#include "kernels/attention/few_rows_plain.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem {
namespace {

constexpr size_t kAlign = 256;

int multiprocessors() {
  static const int n = [] {
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        count < 1)
      return 1;
    return count;
  }();
  return n;
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

/// What decides a division, for calls and for bounds alike.
struct Problem {
  int n_seqs, n_heads, n_kv_heads, head_dim, max_rows, max_tokens;
  bool plain;
};

SplitRule split_rule(const Problem& x) {
  SplitRule r{};
  r.group = x.n_heads / x.n_kv_heads;
  const int queries = std::max(x.max_rows, 1) * r.group;
  const auto fits = [&](int n) { return queries <= n; };
  // Wide tiles read keys once for more queries; of short texts that is nothing beside how long a
  // warp has to work on its queries, so that multiprocessors without any are better given some; the
  // trees of 128 nodes of sequoia/bench-llama-2-7b-68m show it.
  constexpr int kShort = 1024;
  const bool spread = x.max_tokens <= kShort &&
                      x.n_seqs * x.n_kv_heads * divide_up(queries, 32) <= multiprocessors();
  r.tile_queries = x.plain ? kPlainQueries : fits(16) ? 16 : fits(32) || spread ? 32 : 64;
  r.queries = std::min(queries, r.tile_queries);
  r.max_tiles = divide_up(queries, r.tile_queries);
  // One sequence alone: a large chunk a multiprocessor, and the more in small ones. Of several the
  // longest may be most of the work, and large chunks are of 2 MiB of K and V, beside which a few
  // KiB of partial results are little. Small ones, 256 KiB, take as long to bring as some joins of
  // the warps' states: of many queries, whose joins are long and whose products bound the time, a
  // pair gets few or none (measured: an eighth, 1.11 times the time of one row, a 16th, 1.08).
  const bool alone = x.n_seqs == 1;
  const int share = multiprocessors() / (x.n_seqs * x.n_kv_heads * r.max_tiles);
  r.even_chunks = std::clamp(alone ? share : 2 * share, 1, kMostChunks - kSmallParts);
  // There, on 3 to 5 pages, both those forwards and plain steps are faster undivided: see also
  // kWholePages.
  r.least_pages = fits(32) ? 1 : 4;
  r.small_pages = std::max(8 * 128 / x.head_dim, 1);
  r.full_pages = alone ? INT_MAX : 8 * r.small_pages;
  r.small_16ths = r.tile_queries > 32 ? 0 : r.tile_queries > 16 ? 1 : alone ? 4 : 2;
  r.max_chunks = std::clamp(divide_up(x.max_tokens, kPageTokens), 1,
                            std::max(r.even_chunks, kLargeParts) + kSmallParts);
  return r;
}

size_t pairs(const Problem& x, const SplitRule& r) {
  return static_cast<size_t>(x.n_seqs) * static_cast<size_t>(x.n_kv_heads) *
         static_cast<size_t>(r.max_tiles);
}
size_t states(const Problem& x, const SplitRule& r) {
  return pairs(x, r) * static_cast<size_t>(r.max_chunks) * static_cast<size_t>(r.queries);
}
size_t ml_bytes(const Problem& x, const SplitRule& r) {
  return (states(x, r) * sizeof(float2) + kAlign - 1) / kAlign * kAlign;
}
size_t o_bytes(const Problem& x, const SplitRule& r) {
  return states(x, r) * static_cast<size_t>(x.head_dim) * sizeof(float);
}

/// The largest value of `bytes` over all calls within the bounds. It grows with tokens; sequences
/// and rows change the division.
template <class Bytes>
size_t most(const AttentionFewRowsBounds& b, Bytes bytes) {
  size_t result = 0;
  for (int n_seqs = 1; n_seqs <= std::max(b.max_seqs, 1); ++n_seqs) {
    const int most_rows = std::max({b.max_rows_a_seq, b.max_product / n_seqs, 1});
    for (int rows = 1; rows <= most_rows; ++rows)
      for (const bool plain : {false, true}) {
        const Problem x{n_seqs, b.n_heads, b.n_kv_heads, b.head_dim, rows, b.max_tokens, plain};
        result = std::max(result, bytes(x, split_rule(x)));
      }
  }
  return result;
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <int kDim, int kQueryTiles>
void launch_mma(const FewRowsCall& call, cudaStream_t stream) {
  using Shape = MmaShape<kDim, kQueryTiles>;
  // No call can tell how many pages a pool has: the map is as tall as 32-bit coordinates allow, and
  // only pages of the table are read.
  constexpr int64_t kRows = int64_t{1} << 31;
  const CUtensorMap k = cuda::swizzled_map(call.params.k_pool, kRows, kDim, Shape::kKeys),
                    v = cuda::swizzled_map(call.params.v_pool, kRows, kDim, Shape::kKeys);
  const MmaMemory memory = mma_memory<Shape>(call.rule);
  const auto kernel = few_rows_mma<kDim, kQueryTiles>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory.total_bytes);
  cuda::launch(kernel, static_cast<unsigned>(multiprocessors()), Shape::kThreads,
               static_cast<size_t>(memory.total_bytes), 1, Stream{stream}, call, memory, k, v);
}

template <int kDim>
void launch_mma(const FewRowsCall& call, cudaStream_t stream) {
  switch (call.rule.tile_queries) {
    case 16:
      return launch_mma<kDim, 1>(call, stream);
    case 32:
      return launch_mma<kDim, 2>(call, stream);
    default:
      return launch_mma<kDim, 4>(call, stream);
  }
}

template <class T>
void launch_plain(const FewRowsCall& call, cudaStream_t stream) {
  const int bytes = plain_shared_bytes(call.params.head_dim);
  cudaFuncSetAttribute(few_rows_plain<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  few_rows_plain<T><<<multiprocessors(), kPlainThreads, bytes, stream>>>(call);
}

}  // namespace

size_t attention_few_rows_counter_bytes(const AttentionFewRowsBounds& b) {
  return (1 + most(b, pairs)) * sizeof(unsigned);
}

size_t attention_few_rows_workspace_bytes(const AttentionFewRowsBounds& b) {
  return most(b,
              [](const Problem& x, const SplitRule& r) { return ml_bytes(x, r) + o_bytes(x, r); });
}

void attention_few_rows_cuda(const AttentionParams& p, const AttentionLaunch& launch,
                             Stream stream) {
  if (p.n_seqs == 0) return;
  const bool plain = p.dtype != DType::bf16 || (p.head_dim != 64 && p.head_dim != 128) ||
                     !aligned(p.q) || !aligned(p.out) || !aligned(p.k_pool) || !aligned(p.v_pool);
  const Problem x{p.n_seqs,          p.n_heads, p.n_kv_heads, p.head_dim, launch.max_rows_a_seq,
                  launch.max_tokens, plain};
  const SplitRule rule = split_rule(x);
  const FewRowsCall call{.params = p,
                         .rule = rule,
                         .keys_settled = launch.keys_settled,
                         .taken = static_cast<unsigned*>(launch.counters),
                         .done = static_cast<unsigned*>(launch.counters) + 1,
                         .chunk_ml = static_cast<float2*>(launch.workspace),
                         .chunk_o = reinterpret_cast<float*>(static_cast<char*>(launch.workspace) +
                                                             ml_bytes(x, rule))};
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (plain)
    p.dtype == DType::bf16 ? launch_plain<__nv_bfloat16>(call, on) : launch_plain<float>(call, on);
  else
    p.head_dim == 64 ? launch_mma<64>(call, on) : launch_mma<128>(call, on);
}

}  // namespace tandem
