#include "kernels/cuda/gpu_probe.h"

namespace tandem::cuda {
namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__global__ void __launch_bounds__(kHopperProbeThreads) probe() {}
#else
__global__ void __launch_bounds__(kPortableProbeThreads) probe() {}
#endif

}  // namespace

cudaError_t probe_loaded_code(cudaFuncAttributes& loaded) {
  return cudaFuncGetAttributes(&loaded, probe);
}

}  // namespace tandem::cuda
