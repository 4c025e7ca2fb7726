#include "kernels/cuda_table.h"

#include "kernels/norm/rms_norm_cuda.h"

namespace tandem {

const CudaTable& cuda_table() {
  static constexpr CudaTable table{
      .rms_norm = rms_norm_cuda,
  };
  return table;
}

}  // namespace tandem
