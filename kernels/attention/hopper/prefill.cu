#include <algorithm>
#include <bit>

#include "kernels/attention/attention_prefill_cuda.h"
#include "kernels/attention/hopper/prefill.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/tensor_map.h"

namespace tandem::hopper {
namespace {

Packing packing(const AttentionParams& p, const AttentionRows& rows) {
  const auto group = static_cast<unsigned>(p.n_heads / p.n_kv_heads);
  const bool whole = std::has_single_bit(group) && group <= 64;
  const int shift = whole ? std::countr_zero(group) : 0;
  const int head_blocks = p.n_heads >> shift;
  // Keys and values of the head blocks side by side: under half of the 60 MB of L2, since blocks
  // that run late still read the earlier ones, and each half of L2 keeps copies of the other's
  // lines.
  constexpr int64_t kSharedBytes = 24 << 20;
  const int64_t bytes = int64_t{4} * rows.max_tokens * p.head_dim;  // of K and V of one head
  const int64_t fit = std::max<int64_t>(1, kSharedBytes / std::max<int64_t>(1, bytes));
  return {shift, head_blocks, static_cast<int>(std::min<int64_t>(fit, head_blocks))};
}

/// The pool's pages as one long matrix of rows. How many there are is not known here; the page
/// table never asks for more than there are.
CUtensorMap pool_map(const void* pool, int d) {
  constexpr int64_t kRows = 0x7fffffc0;  // coordinates are 32 bits with a sign
  return cuda::swizzled_map(pool, kRows, d, kPageTokens);
}

CUtensorMap query_map(const AttentionParams& p, const AttentionRows& rows, int shift) {
  const auto d = static_cast<uint64_t>(p.head_dim), heads = static_cast<uint64_t>(p.n_heads);
  return cuda::tensor_map_bf16(p.q, {.rank = 3,
                                     .size = {d, heads, static_cast<uint64_t>(rows.n_rows)},
                                     .stride_bytes = {0, d * 2, heads * d * 2},
                                     .box = {64, 1u << shift, 64u >> shift}});
}

template <int kDim, class Out>
void launch(const AttentionParams& p, const AttentionRows& rows, cudaStream_t stream) {
  using Shape = TileShape<kDim>;
  const Packing pack = packing(p, rows);
  const PrefillMaps maps = {query_map(p, rows, pack.shift), pool_map(p.k_pool, kDim),
                            pool_map(p.v_pool, kDim)};
  const auto kernel = prefill_kernel<kDim, Out>;
  constexpr int kBytes = sizeof(TileMemory<kDim>) + 1024;  // room to align it
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int rows_a_tile = Shape::kQueries >> pack.shift;
  const int64_t most_a_seq = (rows.max_rows_a_seq + rows_a_tile - 1) / rows_a_tile;
  const int64_t most =
      std::min<int64_t>(most_a_seq * p.n_seqs, rows.n_rows / rows_a_tile + p.n_seqs) *
      pack.head_blocks;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, cuda::gpu().multiprocessors));
  kernel<<<blocks, Shape::kThreads, kBytes, stream>>>(maps, p, pack);
}

/// Returns true if this body takes the call: rows that the copy engine can read.
bool supported(const AttentionParams& p) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return p.dtype == DType::bf16 && (p.head_dim == 64 || p.head_dim == 128 || p.head_dim == 256) &&
         p.tree_mask == nullptr && aligned(p.q) && aligned(p.k_pool) && aligned(p.v_pool) &&
         aligned(p.out);
}

}  // namespace

void attention_many_rows_cuda(const AttentionParams& all, const AttentionRows& rows,
                              Stream stream) {
  if (rows.n_rows == 0) return;
  if (!supported(all)) return portable::attention_many_rows_cuda(all, rows, stream);
  for (int first = 0; first < all.n_seqs; first += kMaxSeqs) {
    AttentionParams p = all;
    p.n_seqs = std::min(all.n_seqs - first, kMaxSeqs);
    if (p.slot != nullptr)
      p.slot += first;
    else
      p.page_table += static_cast<int64_t>(first) * p.max_pages;
    p.row_begin += first;
    p.base += first;
    if (p.seq_key_lo != nullptr) p.seq_key_lo += first;
    if (p.tentative != nullptr) p.tentative += first;
    const auto on = static_cast<cudaStream_t>(stream.handle);
    const bool half = p.out_dtype == DType::bf16;
    if (p.head_dim == 256)
      half ? launch<256, __nv_bfloat16>(p, rows, on) : launch<256, float>(p, rows, on);
    else if (p.head_dim == 128)
      half ? launch<128, __nv_bfloat16>(p, rows, on) : launch<128, float>(p, rows, on);
    else
      half ? launch<64, __nv_bfloat16>(p, rows, on) : launch<64, float>(p, rows, on);
  }
}

}  // namespace tandem::hopper
