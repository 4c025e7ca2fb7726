#pragma once
// Launches of the kernels that give each row of logits to a group of blocks.
#include "kernels/sample/row_group.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

#ifdef TANDEM_HOPPER_BODY

/// kernel(args..., split), with at least `data_bytes` of dynamic shared memory.
template <class Kernel, class... Args>
void launch_rows(Kernel kernel, int n_rows, const RowSplit& split, size_t data_bytes, void*,
                 Stream stream, const Args&... args) {
  // Clusters gather on the first multiprocessors, several blocks on each, while others idle. Blocks
  // that want more than half of the shared memory have a multiprocessor each: 8 rows' statistics
  // take 8.3 us instead of 13.
  constexpr int kBlocksAtOnce = 128;             // of the 132 multiprocessors of an H100 or H200
  constexpr size_t kMoreThanHalf = 116u * 1024;  // of 227 KiB
  if (n_rows * split.parts <= kBlocksAtOnce && data_bytes < kMoreThanHalf)
    data_bytes = kMoreThanHalf;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(data_bytes));
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  launch(kernel, dim3(static_cast<unsigned>(n_rows * split.parts)), kRowThreads, data_bytes,
         split.parts, stream, args..., split);
}

#else

/// kernel(args..., split), with `data_bytes` for a block's part of rows and marks: dynamic shared
/// memory, or, where that is too small, of `memory`.
template <class Kernel, class... Args>
void launch_rows(Kernel kernel, int n_rows, RowSplit split, size_t data_bytes, void* memory,
                 Stream stream, const Args&... args) {
  place_row(split, gpu(), data_bytes, memory);
  const size_t shared_bytes = split.in_memory ? 0 : data_bytes;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
  launch(kernel, dim3(static_cast<unsigned>(n_rows * split.parts)), kRowThreads, shared_bytes, 1,
         stream, args..., split);
}

#endif

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
