// Whole numbers of the queries whose heads share a set, their references, and a floor of ranks.
#include <math.h>

#include "kernels/code/choose_steps.h"
#include "kernels/code/kept_scores.cuh"
#include "kernels/code/prepare_query.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kDigitBits8 = 8, kDigits = 1 << kDigitBits8;

struct PrepareShared : PreparedQueries<kMostSharing> {
  int bins[kMostSharing][kDigits];
  uint32_t prefix[kMostSharing];  // of the wanted score's order
  int left[kMostSharing];         // its rank among those with the prefix, from 1 on
  float references[kMostSharing];
};

/// The score of a rank, from 0 on, in each of the first `rows` of the sample's; by the whole block.
/// Digit by digit of the scores' orders.
__device__ void find_ranked(PrepareShared& s, int rows, int size, int rank) {
  const int thread = static_cast<int>(threadIdx.x), warp = warp_of(), lane = lane_of();
  if (thread < rows) s.prefix[thread] = 0, s.left[thread] = rank + 1;
#pragma unroll 1
  for (int shift = 32 - kDigitBits8; shift >= 0; shift -= kDigitBits8) {
    for (int i = thread; i < rows * kDigits; i += kPrepareThreads)
      s.bins[i / kDigits][i % kDigits] = 0;
    __syncthreads();
    for (int h = 0; h < rows; ++h) {
      const uint64_t prefix = s.prefix[h];
      for (int i = thread; i < size; i += kPrepareThreads) {
        const uint64_t order = order_of(s.sample[h][i]);
        if (order >> (shift + kDigitBits8) == prefix)
          atomicAdd(&s.bins[h][order >> shift & (kDigits - 1)], 1);
      }
    }
    __syncthreads();
    if (warp < rows) {  // a warp a row: its lanes have some bins each, the largest first
      constexpr int kOwn = kDigits / cuda::kWarp;
      const int first = kDigits - 1 - lane * kOwn, wanted = s.left[warp];
      int own = 0;
      for (int i = 0; i < kOwn; ++i) own += s.bins[warp][first - i];
      int sum = own;  // of the lanes up to this one
      for (int step = 1; step < cuda::kWarp; step *= 2) {
        const int lower = __shfl_up_sync(cuda::kAllLanes, sum, step);
        if (lane >= step) sum += lower;
      }
      int over = sum - own;
      if (over < wanted && sum >= wanted) {
        int bin = first;
        for (; over + s.bins[warp][bin] < wanted; --bin) over += s.bins[warp][bin];
        s.prefix[warp] = s.prefix[warp] << kDigitBits8 | static_cast<uint32_t>(bin);
        s.left[warp] = wanted - over;
      }
    }
    __syncthreads();
  }
}

/// Block (KV head, row).
template <class T>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const ChooseCodedParams p) {
  extern __shared__ __align__(16) unsigned char memory[];
  PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
  cuda::start_after_previous();
  const int group = p.n_heads / p.n_kv_heads, thread = static_cast<int>(threadIdx.x);
  const CodedList list(p, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * group);
  if (list.n == 0) return;
  if (warp_of() < group) make_query<T>(p, list, warp_of(), s);
  __syncthreads();
  if (const int wanted = list.wanted(p); wanted < list.n) {
    take_sample(p, list, group, s);
    __syncthreads();
    const KeySample sample(list.n);
    find_ranked(s, group, sample.size(), sample.rank(wanted, list.n));
    if (thread < group) s.references[thread] = score_of(s.prefix[thread]);
    __syncthreads();
    if (const int rank = floor_rank(p, list); list.n >= kLeastSampled && rank < kSample / 2) {
      for (int i = thread; i < kSample; i += kPrepareThreads) {
        float most = -INFINITY;
        for (int h = 0; h < group; ++h) most = fmaxf(most, s.sample[h][i] - s.references[h]);
        s.sample[0][i] = most;
      }
      find_ranked(s, 1, kSample, rank);
      if (thread < group) s.queries[thread].floor = score_of(s.prefix[0]);
    }
  }
  if (thread >= group) return;
  p.scratch.queries[list.local + thread] = s.queries[thread];
  p.scratch.references[list.local + thread] = s.references[thread];
}

}  // namespace

void prepare_shared(const ChooseCodedParams& p, Stream stream) {
  cuda::with_act(p.dtype, [&](auto* type) {
    const auto kernel = prepare<std::remove_pointer_t<decltype(type)>>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(PrepareShared));
    cuda::launch(kernel, dim3(static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows)),
                 kPrepareThreads, sizeof(PrepareShared), 1, stream, p);
  });
}

}  // namespace tandem::coded
