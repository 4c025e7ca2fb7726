#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "base/error.h"

namespace tandem::cuda {
namespace {

/// The driver's function, found at run time: programs then start on machines without a driver.
PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
  constexpr unsigned kVersion = 12000;  // of CUDA, where the function appeared
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                            kVersion, cudaEnableDefault, &found);
  if (code != cudaSuccess || found != cudaDriverEntryPointSuccess || function == nullptr)
    throw Error(ErrorKind::device, "cuda",
                "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMap map_of(const void* base, const TensorShape& shape, CUtensorMapDataType type,
                   CUtensorMapSwizzle swizzle) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
  constexpr uint32_t kDense[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encode(&map, type, static_cast<uint32_t>(shape.rank), const_cast<void*>(base), shape.size,
             shape.stride_bytes + 1, shape.box, kDense, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    throw make_error(ErrorKind::device, "cuda",
                     "cannot create a tensor map of rank {} ({} x {}, box {} x {}): error {}",
                     shape.rank, shape.size[0], shape.size[1], shape.box[0], shape.box[1],
                     static_cast<int>(code));
  return map;
}

}  // namespace

CUtensorMap tensor_map_bf16(const void* base, const TensorShape& shape) {
  return map_of(base, shape, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap swizzled_map(const void* matrix, int64_t rows, int columns, int box_rows) {
  const auto width = static_cast<uint64_t>(columns);
  return tensor_map_bf16(matrix, {.rank = 2,
                                  .size = {width, static_cast<uint64_t>(rows)},
                                  .stride_bytes = {0, width * 2},
                                  .box = {64, static_cast<uint32_t>(box_rows)}});
}

CUtensorMap plain_map(const void* matrix, int64_t rows, int64_t row_bytes, int box_rows,
                      int box_bytes) {
  constexpr int64_t kNumber = 8;  // bytes
  return map_of(
      matrix,
      {.rank = 2,
       .size = {static_cast<uint64_t>(row_bytes / kNumber), static_cast<uint64_t>(rows)},
       .stride_bytes = {0, static_cast<uint64_t>(row_bytes)},
       .box = {static_cast<uint32_t>(box_bytes / kNumber), static_cast<uint32_t>(box_rows)}},
      CU_TENSOR_MAP_DATA_TYPE_INT64, CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace tandem::cuda
