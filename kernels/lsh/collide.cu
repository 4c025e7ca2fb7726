#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / cuda::kWarp;
constexpr int kOwn = 8;  // counters of a thread at a time

/// A list and one of its sequence's blocks: block (block of tokens, list) of both kernels.
struct Part {
  int64_t list, number;  // the latter of the list's block among all
  int head, kv_head, slot, block = 0;
  int n = 0;  // tokens of the block

  __device__ explicit Part(const CollideParams& p)
      : list(blockIdx.y),
        number(list * p.max_blocks + blockIdx.x),
        head(static_cast<int>(list % p.n_heads)),
        kv_head(head / (p.n_heads / p.n_kv_heads)) {
    const ChoosingRow row(p.choosing, static_cast<int>(list / p.n_heads));
    slot = row.slot;
    const int begin = p.begin + static_cast<int>(blockIdx.x) * p.blocks.capacity;
    if (row.exists()) n = min(p.ends[slot] - begin, p.blocks.capacity);
    if (n > 0) block = p.table[int64_t{slot} * p.max_blocks + blockIdx.x];
  }
};

/// Two counters a word; no count passes the number of tables.
__global__ void __launch_bounds__(kThreads) count_hits(const CollideParams p) {
  extern __shared__ __align__(16) uint32_t counters[];  // [capacity / 2]
  cuda::wait_for_previous();
  const Part part(p);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % cuda::kWarp;
  if (part.n <= 0) {
    if (thread == 0) p.n_hits[part.number] = 0;
    return;
  }
  const HashBlocks& b = p.blocks;
  for (int i = thread; i < b.capacity / 2; i += kThreads) counters[i] = 0;
  __syncthreads();
  const int buckets = 1 << b.code_bits;
  const uint16_t* tables = b.at + part.block * p.block_stride + part.kv_head * b.head_stride;
  const uint16_t* all_ids = tables + int64_t{b.tables} * (buckets + 1);
  for (int t = thread / cuda::kWarp; t < b.tables; t += kWarps) {
    const uint16_t* offsets =
        tables + int64_t{t} * (buckets + 1) + p.codes[part.list * b.tables + t];
    const uint16_t* ids = all_ids + int64_t{t} * b.capacity;
    for (int i = offsets[0] + lane; i < offsets[1]; i += cuda::kWarp)
      atomicAdd(&counters[ids[i] / 2], ids[i] % 2 == 0 ? 1u : 1u << 16);
  }
  __syncthreads();
  const auto* counts = reinterpret_cast<const uint16_t*>(counters);
  uint16_t* const hits = p.hits + part.number * b.capacity;
  int n_hits = 0;
  for (int begin = 0; begin < part.n; begin += kThreads * kOwn) {
    const int first = begin + thread * kOwn;
    int own = 0, all;
    for (int i = first; i < min(first + kOwn, part.n); ++i) own += counts[i] >= p.min_hits ? 1 : 0;
    int at = n_hits + cuda::sum_before<kThreads>(own, all);
    for (int i = first; own > 0 && i < min(first + kOwn, part.n); ++i)
      if (counts[i] >= p.min_hits) hits[at++] = static_cast<uint16_t>(i);
    n_hits += all;
  }
  if (thread == 0) p.n_hits[part.number] = n_hits;
}

__global__ void __launch_bounds__(kThreads) join_hits(const CollideParams p) {
  cuda::wait_for_previous();
  const Part part(p);
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  if (block == 0 && part.n <= 0) {
    if (thread == 0) p.count[part.list] = 0;
    return;
  }
  if (part.n <= 0) return;
  int before = p.begin, all = p.begin;
  for (int i = 0; i < p.max_blocks; ++i) {
    const int n = p.n_hits[part.list * p.max_blocks + i];
    before += i < block ? n : 0;
    all += n;
  }
  int32_t* const ids = p.ids + part.list * p.id_stride;
  float* const norms = p.norms + part.list * p.id_stride;
  if (block == 0) {
    if (thread == 0) p.count[part.list] = all;
    for (int i = thread; i < p.begin; i += kThreads) ids[i] = i, norms[i] = -1;
  }
  const int first_id = p.begin + block * p.blocks.capacity;
  const uint16_t* hits = p.hits + part.number * p.blocks.capacity;
  const float* key_norms =
      p.key_norms + part.block * p.norm_block_stride + int64_t{part.kv_head} * p.blocks.capacity;
  for (int i = thread; i < p.n_hits[part.number]; i += kThreads) {
    ids[before + i] = first_id + hits[i];
    norms[before + i] = key_norms[hits[i]];
  }
}

}  // namespace

void collide_cuda(const CollideParams& p, Stream stream) {
  const int lists = (p.choosing.rows.end - p.choosing.rows.begin) * p.n_heads;
  if (lists == 0) return;
  const dim3 grid(static_cast<unsigned>(p.max_blocks), static_cast<unsigned>(lists));
  const size_t bytes = sizeof(uint16_t) * static_cast<size_t>(p.blocks.capacity);
  (void)cudaFuncSetAttribute(count_hits, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(count_hits, grid, kThreads, bytes, 1, stream, p);
  cuda::launch(join_hits, grid, kThreads, stream, p);
}

}  // namespace tandem
