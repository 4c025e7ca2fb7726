#include "kernels/channels/gather_columns.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMaxGridRows = 65535;

template <class T>
__global__ void __launch_bounds__(kThreads) gather_columns_rows(const GatherColumnsParams p) {
  cuda::start_after_previous();
  const int c = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= p.n_columns) return;
  const int64_t column = p.columns[c];
  for (int64_t r = blockIdx.y; r < p.n_rows; r += gridDim.y)
    static_cast<T*>(p.out)[r * p.n_columns + c] = static_cast<const T*>(p.in)[r * p.width + column];
}

}  // namespace

void gather_columns_cuda(const GatherColumnsParams& p, Stream stream) {
  if (p.n_rows == 0 || p.n_columns == 0) return;
  cuda::with_act(p.act, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const auto rows = static_cast<unsigned>(p.n_rows);
    const dim3 grid(cuda::blocks_for(p.n_columns, kThreads),
                    rows < kMaxGridRows ? rows : kMaxGridRows);
    cuda::launch(gather_columns_rows<T>, grid, kThreads, stream, p);
  });
}

}  // namespace tandem
