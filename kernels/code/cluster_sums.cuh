#pragma once
// The weights of a block's keys by query and cluster. Sums of whole numbers are the same in any
// order.
#include "base/log2.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::coded {

/// Holds sums in shared memory.
template <int kQueries>
struct ClusterSums {
  static constexpr int kUnitBits = 20;  // kScanKeys weights of at most 1 stay below 2^32
  // Lanes add for two queries at a time, whose rows begin at different banks.
  uint32_t at[kQueries][kValueClusters + 8];

  /// Sets all sums to 0; the whole block calls it and waits.
  __device__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kQueries * (kValueClusters + 8);
         i += static_cast<int>(blockDim.x))
      (&at[0][0])[i] = 0;
    __syncthreads();
  }
  /// log    a weight's; the weight is at most 1
  __device__ void add(int query, int cluster, float log) {
    const uint32_t number = __float2uint_rn(cuda::exp2_fast(log * kLog2E + kUnitBits));
    if (number > 0) atomicAdd(&at[query][cluster], number);
  }
  /// Writes the masses of `block` of a list and the next n - 1; by the whole block, which waits.
  __device__ void write(const ChooseCodedParams& p, int64_t list, int n, int block) const {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n * kValueClusters;
         i += static_cast<int>(blockDim.x))
      masses_of(p, list + i / kValueClusters)[block * kValueClusters + i % kValueClusters] =
          static_cast<float>(at[i / kValueClusters][i % kValueClusters]) / (1 << kUnitBits);
  }
};

/// The clusters of a group's keys: a lane holds those of four keys.
struct GroupClusters {
  uint32_t four;

  /// first    key of the group
  __device__ void load(const ChooseCodedParams& p, const CodedList& list, int first) {
    four = reinterpret_cast<const uint32_t*>(list.clusters(p, first))[lane_of()];
  }
  /// Returns the cluster of the lane's key of a tile; by the whole warp.
  __device__ int of_tile(int tile) const {
    const int key = key_of_lane();
    const uint32_t word = __shfl_sync(cuda::kAllLanes, four, tile * (kTile / 4) + key / 4);
    return static_cast<int>(word >> (key % 4 * 8) & 255);
  }
};

}  // namespace tandem::coded
