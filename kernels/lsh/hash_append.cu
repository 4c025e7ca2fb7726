#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/lsh/lsh_cuda.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr int kBuckets = 4096, kOwn = kBuckets / kThreads;  // counted at a time; of a thread

/// One table of a block of tokens, before its new tokens.
struct Table {
  uint16_t* offsets;
  uint16_t* ids;
  int n_old;

  __device__ int offset(int bucket) const { return n_old == 0 ? 0 : offsets[bucket]; }
  /// The bucket of [first, end) that holds the old id at `place`.
  __device__ int bucket_of(int place, int first, int end) const {
    while (end - first > 1) {
      const int middle = (first + end) / 2;
      (offset(middle) <= place ? first : end) = middle;
    }
    return first;
  }
};

/// Block (table, KV head). Buckets are done from the last on: old ids move up alone, so that none
/// is written over that has not moved.
__global__ void __launch_bounds__(kThreads) hash_append(const HashAppendCudaParams p) {
  __shared__ int added[kBuckets];  // new ids of lower buckets, then where a bucket's next one goes
  cuda::wait_for_previous();
  const HashBlocks& b = p.block;
  const int thread = static_cast<int>(threadIdx.x), buckets = 1 << b.code_bits;
  const int64_t table = blockIdx.x, head = blockIdx.y;
  uint16_t* const head_tables = b.at + head * b.head_stride;
  const Table t{head_tables + table * (buckets + 1),
                head_tables + int64_t{b.tables} * (buckets + 1) + table * b.capacity, p.n_old};
  const uint16_t* codes = p.codes + (head * b.tables + table) * p.n;
  int old_end = p.n_old;  // of the buckets to do
  for (int first = (buckets - 1) / kBuckets * kBuckets; first >= 0; first -= kBuckets) {
    const int n = min(kBuckets, buckets - first), old_begin = t.offset(first);
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
      offsets[i] = bucket < n ? t.offset(first + bucket) : old_end;
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
  if (p.n == 0) return;
  cuda::launch(hash_append,
               dim3(static_cast<unsigned>(p.block.tables), static_cast<unsigned>(p.n_kv_heads)),
               kThreads, stream, p);
}

}  // namespace tandem
