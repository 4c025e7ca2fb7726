#pragma once
// On Hopper the blocks of a row are a cluster and read each other's shared memory.
#include <cooperative_groups.h>

#include "kernels/sample/row_split.h"

namespace tandem::cuda::inline hopper {

/// Blocks that a multiprocessor is to have room for.
inline constexpr int kBlocksASm = 2;

class RowLink {
 public:
  /// shared: holds all that blocks publish in a kernel.
  template <class Shared>
  __device__ RowLink(const RowSplit& split, Shared&)
      : cluster_(cooperative_groups::this_cluster()), parts_(split.parts) {}

  __device__ int row() const { return static_cast<int>(blockIdx.x) / parts_; }
  __device__ int rank() const { return static_cast<int>(cluster_.block_rank()); }
  /// Room for this block's part of the row.
  __device__ float* data(float* dynamic) const { return dynamic; }

  /// All blocks of the row meet; what any of them published before, all can read after.
  __device__ void sync() { cluster_.sync(); }
  /// Where this block's copy of published data lies, and that of block `rank`.
  template <class T>
  __device__ T* own(T* shared) const {
    return shared;
  }
  template <class T>
  __device__ T* peer(T* shared, int rank) const {
    return cluster_.map_shared_rank(shared, static_cast<unsigned>(rank));
  }
  /// Publishes data that was made in shared memory, at the next sync. Called by all threads.
  template <class T>
  __device__ void publish(T&) {}

 private:
  cooperative_groups::cluster_group cluster_;
  int parts_;
};

}  // namespace tandem::cuda::inline hopper
