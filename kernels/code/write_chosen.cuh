#pragma once
// The tokens that a choice writes.
#include "kernels/cuda/scan.cuh"

namespace tandem::coded {

/// Writes the tokens of set bits, one for each of n keys, in their order; by the whole block.
template <int kThreads>
__device__ void write_ids(const uint32_t* bits, int n, int first, int32_t* ids) {
  const int words = (n + 31) / 32, thread = static_cast<int>(threadIdx.x);
  const int each = (words + kThreads - 1) / kThreads;
  const int begin = min(thread * each, words), end = min(begin + each, words);
  int own = 0, all;
  for (int w = begin; w < end; ++w) own += __popc(bits[w]);
  int32_t* to = ids + cuda::sum_before<kThreads>(own, all);
  for (int w = begin; w < end; ++w)
    for (uint32_t word = bits[w]; word != 0; word &= word - 1)
      *to++ = first + w * 32 + __ffs(static_cast<int>(word)) - 1;
}

}  // namespace tandem::coded
