#pragma once
// How many of the best candidates of a list hold a share of its estimated weights, by one block.
#include <math.h>

#include "kernels/code/code_tile.cuh"
#include "kernels/code/kept_scores.cuh"

namespace tandem::coded {

/// As policies/hybrid_exact.cpp counts them, to a sixteenth of a score, `most` at most.
/// floor    to whose weight the other keys' masses are relative
/// top      the best candidate's score
template <int kThreads, bool kInShared>
__device__ int keys_of_mass(const ChooseCodedParams& p, const CodedList& list,
                            const KeptScores<kThreads, kInShared>& kept, float floor, float top,
                            int most) {
  constexpr int kMassBins = 256, kBinsAUnit = 16;
  constexpr float kUnits = 4294967296.0f;  // weights as whole numbers, in any order the same sums
  __shared__ unsigned long long mass[kMassBins], all;
  __shared__ int count[kMassBins], keys;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kMassBins; i += kThreads) mass[i] = 0, count[i] = 0;
  if (thread == 0) all = 0;
  __syncthreads();
  unsigned long long own = 0;
  kept.each([&](int, uint32_t order, uint32_t) {
    const float score = score_of(order);
    const auto weight =
        static_cast<unsigned long long>(exp2f(fminf(score - top, 0.0f) * kLog2E) * kUnits);
    own += weight;
    const int bin =
        static_cast<int>(fminf(static_cast<float>(kMassBins - 1), (top - score) * kBinsAUnit));
    atomicAdd(&mass[bin], weight);
    atomicAdd(&count[bin], 1);
  });
  const float of_floor = floor == -INFINITY ? 0.0f : exp2f(fminf(floor - top, 0.0f) * kLog2E);
  const float* const masses = masses_of(p, list.local);
  const int n = scanned_masses(p.clusters.ids != nullptr, list.n);
  for (int r = thread; r < n; r += kThreads)
    own += static_cast<unsigned long long>(masses[r] * of_floor * kUnits);
  for (int step = cuda::kWarp / 2; step > 0; step /= 2)
    own += __shfl_xor_sync(cuda::kAllLanes, own, step);
  if (lane_of() == 0) atomicAdd(&all, own);
  __syncthreads();
  if (thread == 0) {
    const double wanted = p.mass * static_cast<double>(all);
    double sum = 0;
    int found = 0;
    for (int bin = 0; bin < kMassBins && sum < wanted; ++bin) {
      sum += static_cast<double>(mass[bin]);
      found += count[bin];
    }
    keys = min(max(found, min(p.least_exact, most)), most);
  }
  __syncthreads();
  return keys;
}

}  // namespace tandem::coded
