#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

constexpr int kBuckets = 4096;  // counted at a time
constexpr int kThreads = 256, kBuildThreads = 1024;

/// Codes of a block's table, and where its head's tables begin.
struct NewIds {
  const uint16_t* codes;
  uint16_t* tables;

  __device__ explicit NewIds(const HashAppendCudaParams& p) {
    const int64_t table = blockIdx.x, head = blockIdx.y;
    codes = p.codes.at + head * p.codes.head_stride + table * p.codes.table_stride;
    tables = p.block.at + (p.heads.begin + head) * p.block.head_stride;
  }
};

/// One table of a block of tokens, before its new tokens.
struct Table {
  uint16_t* offsets;
  uint16_t* ids;

  /// The bucket of [first, end) that holds the old id at `place`.
  __device__ int bucket_of(int place, int first, int end) const {
    while (end - first > 1) {
      const int middle = (first + end) / 2;
      (offsets[middle] <= place ? first : end) = middle;
    }
    return first;
  }
};

/// Block (table, KV head), of tables without ids.
__global__ void __launch_bounds__(kBuildThreads) hash_build(const HashAppendCudaParams p) {
  extern __shared__ uint16_t ordered[];  // [n] ids
  __shared__ int next[kBuckets];         // ids of a bucket, then where its next one goes
  constexpr int kOwn = kBuckets / kBuildThreads;
  cuda::wait_for_previous();
  const HashBlocks& b = p.block;
  const int thread = static_cast<int>(threadIdx.x), buckets = 1 << b.code_bits;
  const int64_t table = blockIdx.x;
  const NewIds ids(p);
  uint16_t* const offsets = ids.tables + table * (buckets + 1);
  int lower = 0;  // ids of buckets before `first`
  for (int first = 0; first < buckets; first += kBuckets) {
    const int n = min(kBuckets, buckets - first);
    for (int i = thread; i < kBuckets; i += kBuildThreads) next[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = thread; i < p.n; i += kBuildThreads) {
      const int bucket = ids.codes[i] - first;
      if (bucket >= 0 && bucket < n) atomicAdd(&next[bucket], 1);
    }
    __syncthreads();
    int own = 0, all;
    for (int i = 0; i < kOwn; ++i) own += next[thread * kOwn + i];
    int before = lower + cuda::sum_before<kBuildThreads>(own, all);
    for (int bucket = thread * kOwn; bucket < (thread + 1) * kOwn; ++bucket) {
      const int count = next[bucket];
      next[bucket] = before;
      if (bucket < n) offsets[first + bucket] = static_cast<uint16_t>(before);
      before += count;
    }
    __syncthreads();
#pragma unroll 4
    for (int i = thread; i < p.n; i += kBuildThreads) {
      const int bucket = ids.codes[i] - first;
      if (bucket >= 0 && bucket < n)
        ordered[atomicAdd(&next[bucket], 1)] = static_cast<uint16_t>(i);
    }
    lower += all;
    __syncthreads();
  }
  if (thread == 0) offsets[buckets] = static_cast<uint16_t>(p.n);
  uint16_t* const to = ids.tables + int64_t{b.tables} * (buckets + 1) + table * b.capacity;
  for (int i = thread; i < p.n; i += kBuildThreads) to[i] = ordered[i];
}

/// Block (table, KV head). Buckets are done from the last on: old ids move up alone, so that none
/// is written over that has not moved.
__global__ void __launch_bounds__(kThreads) hash_append(const HashAppendCudaParams p) {
  constexpr int kOwn = kBuckets / kThreads;  // of a thread
  __shared__ int added[kBuckets];  // new ids of lower buckets, then where a bucket's next one goes
  cuda::wait_for_previous();
  const HashBlocks& b = p.block;
  const int thread = static_cast<int>(threadIdx.x), buckets = 1 << b.code_bits;
  const int64_t table = blockIdx.x;
  const NewIds ids(p);
  const uint16_t* const codes = ids.codes;
  const Table t{ids.tables + table * (buckets + 1),
                ids.tables + int64_t{b.tables} * (buckets + 1) + table * b.capacity};
  int old_end = p.n_old;  // of the buckets to do
  for (int first = (buckets - 1) / kBuckets * kBuckets; first >= 0; first -= kBuckets) {
    const int n = min(kBuckets, buckets - first), old_begin = int{t.offsets[first]};
    for (int i = thread; i < kBuckets; i += kThreads) added[i] = 0;
    __syncthreads();
    int lower = 0, n_lower;
    for (int i = thread; i < p.n; i += kThreads) {
      const int bucket = codes[i] - first;
      lower += bucket < 0 ? 1 : 0;
      if (bucket >= 0 && bucket < n) atomicAdd(&added[bucket], 1);
    }
    (void)cuda::sum_before<kThreads>(lower, n_lower);
    int own = 0, all;
    for (int i = 0; i < kOwn; ++i) own += added[thread * kOwn + i];
    int before = n_lower + cuda::sum_before<kThreads>(own, all);
    for (int i = 0; i < kOwn; ++i) {
      const int count = added[thread * kOwn + i];
      added[thread * kOwn + i] = before;
      before += count;
    }
    __syncthreads();
    for (int end = old_end; end > old_begin; end -= kThreads) {
      const int place = end - 1 - thread;
      const bool moves = place >= old_begin;
      uint16_t id = 0;
      int to = 0;
      if (moves) {
        id = t.ids[place];
        to = place + added[t.bucket_of(place, first, first + n) - first];
      }
      __syncthreads();
      if (moves) t.ids[to] = id;
      __syncthreads();
    }
    int offsets[kOwn + 1];
#pragma unroll
    for (int i = 0; i <= kOwn; ++i) {
      const int bucket = thread * kOwn + i;
      offsets[i] = bucket < n ? int{t.offsets[first + bucket]} : old_end;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int bucket = thread * kOwn + i;
      if (bucket >= n) continue;
      const int lower_ids = added[bucket];
      t.offsets[first + bucket] = static_cast<uint16_t>(offsets[i] + lower_ids);
      added[bucket] = offsets[i + 1] + lower_ids;
    }
    __syncthreads();
    for (int i = thread; i < p.n; i += kThreads) {
      const int bucket = codes[i] - first;
      if (bucket >= 0 && bucket < n)
        t.ids[atomicAdd(&added[bucket], 1)] = static_cast<uint16_t>(p.n_old + i);
    }
    __syncthreads();
    old_end = old_begin;
  }
  if (thread == 0) t.offsets[buckets] = static_cast<uint16_t>(p.n_old + p.n);
}

}  // namespace

void hash_append_cuda(const HashAppendCudaParams& p, Stream stream) {
  const dim3 grid(static_cast<unsigned>(p.block.tables),
                  static_cast<unsigned>(p.heads.end - p.heads.begin));
  if (p.n == 0 || grid.y == 0) return;
  if (p.n_old > 0) return cuda::launch(hash_append, grid, kThreads, stream, p);
  const size_t bytes = static_cast<size_t>(p.n) * sizeof(uint16_t);
  (void)cudaFuncSetAttribute(hash_build, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes));
  cuda::launch(hash_build, grid, kBuildThreads, bytes, 1, stream, p);
}

}  // namespace tandem
