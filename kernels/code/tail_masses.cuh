#pragma once
// The masses of a list's tail, by run or by cluster. A scan leaves those of the keys below the
// floor. A choice adds those of the candidates that it does not take.
#include "kernels/code/coded_list.cuh"

namespace tandem::coded {

/// Sets all masses of `heads` heads to 0; by the whole block.
template <int kThreads>
__device__ void clear_masses(const ChooseCodedParams& p, const CodedList& list, int heads) {
  const int n = scanned_masses(p.clusters.ids != nullptr, list.n);
  for (int i = static_cast<int>(threadIdx.x); i < heads * n && p.masses != nullptr; i += kThreads)
    masses_of(p, list.local + i / n)[i % n] = 0;
}

/// Returns the factor of weights of at most 1 as whole numbers. Sums over a run's keys, or over
/// `kept` keys of one cluster, stay below 2^32.
__device__ inline float mass_scale(bool by_cluster, int kept) {
  constexpr int kRunBits = 23;
  return static_cast<float>(1 << (by_cluster ? min(__clz(kept), kRunBits) : kRunBits));
}

template <int kThreads>
class TailMasses {
 public:
  /// numbers    [heads, size()] zeros in shared memory
  /// kept       candidates
  __device__ TailMasses(const ChooseCodedParams& p, const CodedList& list, uint32_t* numbers,
                        int kept)
      : p_(p),
        list_(list),
        numbers_(numbers),
        by_cluster_(p.clusters.ids != nullptr),
        scale_(mass_scale(by_cluster_, kept)) {}
  /// Masses of a head.
  __device__ int size() const {
    return by_cluster_ ? kValueClusters : (list_.n + kMeanKeys - 1) / kMeanKeys;
  }
  /// Adds a candidate's weight of at most 1. Sums of whole numbers do not depend on their order.
  __device__ void add(int head, int key, float weight) const {
    const int at = by_cluster_ ? *list_.clusters(p_, key) : key / kMeanKeys;
    atomicAdd(&numbers_[head * size() + at], __float2uint_rn(weight * scale_));
  }
  /// Writes the masses; by the whole block, which waits for all additions.
  /// of_floor    weight of a score at the floor
  /// scratch     [kThreads]
  __device__ void write(int heads, float of_floor, float* scratch) const {
    const int thread = static_cast<int>(threadIdx.x), values = heads * size();
    const auto sum_of = [&](float below, int i) {
      return (below > 0 ? below * of_floor : 0.0f) + static_cast<float>(numbers_[i]) / scale_;
    };
    __syncthreads();
    if (!by_cluster_) {
      for (int i = thread; i < values; i += kThreads) {
        float& mass = masses_of(p_, list_.local + i / size())[i % size()];
        mass = sum_of(mass, i);
      }
      return;
    }
    // Some threads a cluster add what the blocks of the scan left.
    const int parts = kThreads / values, part = thread / values, i = thread % values;
    const int blocks = (list_.n + kScanKeys - 1) / kScanKeys;
    float* const masses = masses_of(p_, list_.local + i / kValueClusters) + i % kValueClusters;
    float below = 0;
    for (int block = part; block < blocks && part < parts; block += parts)
      below += masses[block * kValueClusters];
    scratch[thread] = below;
    __syncthreads();
    if (part > 0) return;
    for (int other = 1; other < parts; ++other) below += scratch[other * values + i];
    *masses = sum_of(below, i);
  }

 private:
  const ChooseCodedParams& p_;
  const CodedList& list_;
  uint32_t* numbers_;
  bool by_cluster_;
  float scale_;
};

}  // namespace tandem::coded
