#pragma once
// The heads that share a set, as a block knows them.
#include <math.h>

#include "kernels/code/refine_coded.cuh"

namespace tandem::coded {

struct Group {
  int heads;
  DeviceCodeQuery queries[kMostSharing];
  float references[kMostSharing];
  __align__(16) uint32_t q[kMostSharing][kMostDims / 4];  // words of the whole numbers

  /// By the whole block, which waits for it.
  __device__ void load(const ChooseCodedParams& p, const CodedList& list, int n) {
    const int thread = static_cast<int>(threadIdx.x), words = p.codes.dims / 4;
    if (thread == 0) heads = n;
    if (thread < n) {
      queries[thread] = p.scratch.queries[list.local + thread];
      references[thread] = p.scratch.references[list.local + thread];
    }
    const auto* from = reinterpret_cast<const uint32_t*>(p.scratch.q + list.local * p.codes.dims);
    for (int i = thread; i < n * words; i += static_cast<int>(blockDim.x))
      q[i / words][i % words] = from[i];
    __syncthreads();
  }
  /// A key's rank by all bits. scores: [heads] in by signs, out by all bits.
  template <int kWidth>
  __device__ float refined_rank(const ChooseCodedParams& p, const CodedList& list, int key,
                                float* scores) const {
    float rank = -INFINITY;
#pragma unroll 1
    for (int h = 0; h < heads; ++h) {
      float score = scores[h];
      if constexpr (kWidth > 0)
        scores[h] = score = refine<kWidth>(p, list, queries[h], q[h], key, score);
      rank = fmaxf(rank, score - references[h]);
    }
    return rank;
  }
};

}  // namespace tandem::coded
