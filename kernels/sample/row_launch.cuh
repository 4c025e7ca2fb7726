#pragma once
// Launches of the kernels that give each row of logits to a cluster of blocks.
#include "kernels/sample/row_cluster.cuh"

namespace tandem::cuda {

/// kernel(args..., split), with at least `shared_bytes` of dynamic shared memory.
template <class Kernel, class... Args>
void launch_rows(Kernel kernel, int n_rows, const RowSplit& split, size_t shared_bytes,
                 Stream stream, const Args&... args) {
  // Clusters gather on the first multiprocessors, several blocks on each, while others idle. Blocks
  // that want more than half of the shared memory have a multiprocessor each: 8 rows' statistics
  // take 8.3 us instead of 13.
  constexpr int kBlocksAtOnce = 128;             // of the 132 multiprocessors of an H100 or H200
  constexpr size_t kMoreThanHalf = 116u * 1024;  // of 227 KiB
  if (n_rows * split.parts <= kBlocksAtOnce && shared_bytes < kMoreThanHalf)
    shared_bytes = kMoreThanHalf;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  launch(kernel, dim3(static_cast<unsigned>(n_rows * split.parts)), kRowThreads, shared_bytes,
         split.parts, stream, args..., split);
}

}  // namespace tandem::cuda
