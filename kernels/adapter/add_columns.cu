#include "kernels/adapter/add_columns.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) add_columns(const AddColumnsParams p) {
  cuda::start_after_previous();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{p.n_rows} * p.n) return;
  T* const y = static_cast<T*>(p.y) + i / p.n * p.stride + p.index[i % p.n];
  *y = cuda::from_float<T>(cuda::to_float(*y) + p.in[i]);
}

}  // namespace

void add_columns_cuda(const AddColumnsParams& p, Stream stream) {
  const int64_t n = int64_t{p.n_rows} * p.n;
  if (n == 0) return;
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    cuda::launch(add_columns<T>, cuda::blocks_for(n, kThreads), kThreads, stream, p);
  });
}

}  // namespace tandem
