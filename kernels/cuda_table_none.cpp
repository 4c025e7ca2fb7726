#include "base/error.h"
#include "kernels/cuda_table.h"

namespace tandem {

const CudaTable& cuda_table() {
  throw Error(ErrorKind::device, "cuda", "this build of tandem has no CUDA");
}

}  // namespace tandem
