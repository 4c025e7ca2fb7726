#include "base/error.h"
#include "kernels/cuda_table.h"

namespace tandem {
namespace {

[[noreturn]] void fail() {
  throw Error(ErrorKind::device, "cuda", "this build of tandem has no CUDA");
}

}  // namespace

const CudaTable& cuda_table() { fail(); }
const cuda::Gpu& cuda::gpu() { fail(); }
const cuda::Gpu& cuda::gpu_of(int) { fail(); }

}  // namespace tandem
