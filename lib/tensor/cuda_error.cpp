#include "tensor/cuda_error.h"

#include <cuda_runtime.h>

namespace tandem::cuda {

Error error_of(int code, const std::string& what, const char* last) {
  const auto error = static_cast<cudaError_t>(code);
  switch (error) {
    // At the first use of a GPU: a context is what another process may deny this one.
    case cudaErrorDevicesUnavailable:
      return make_error(ErrorKind::device, "cuda",
                        "{}: another process uses the GPU exclusively, or its compute mode is "
                        "prohibited ({})",
                        what, cudaGetErrorName(error))
          .hint(
              "wait for the processes that nvidia-smi lists, check the mode (nvidia-smi -q -d "
              "COMPUTE), or use --device cuda:N or --device cpu");
    case cudaErrorMemoryAllocation:
      return make_error(ErrorKind::memory, "cuda", "{}: out of memory ({}); last operation: {}",
                        what, cudaGetErrorName(error), last)
          .hint(
              "wait for the processes that nvidia-smi lists, use another GPU with --device cuda:N, "
              "or lower run.context or run.batch");
    // A GPU that is gone or broken, in the midst of work.
    case cudaErrorUnknown:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
      return make_error(ErrorKind::device, "cuda",
                        "{}: {} ({}): the GPU is lost for this process; last operation: {}", what,
                        cudaGetErrorString(error), cudaGetErrorName(error), last)
          .hint(
              "run again; if that fails, check nvidia-smi and the Xid lines of dmesg, then reset "
              "the GPU or use another with --device cuda:N");
    default:
      return make_error(ErrorKind::device, "cuda", "{}: {} ({}); last operation: {}", what,
                        cudaGetErrorString(error), cudaGetErrorName(error), last)
          .hint(
              "run again with TANDEM_CUDA_SYNC=1 to see which operation failed; nvidia-smi shows "
              "whether another process uses the GPU");
  }
}

}  // namespace tandem::cuda
