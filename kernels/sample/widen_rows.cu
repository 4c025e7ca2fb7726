#include "kernels/cuda/launch.cuh"
#include "kernels/sample/widen_rows.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;

/// Blocks along x cover a row, those along y take rows in turn.
__global__ void __launch_bounds__(kThreads) widen_rows(const WidenRowsParams p) {
  cuda::start_after_previous();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= p.to) return;
  for (int r = static_cast<int>(blockIdx.y); r < p.n_rows; r += static_cast<int>(gridDim.y))
    p.out[int64_t{r} * p.to + i] =
        i < p.from ? p.in[int64_t{r} * p.from + i] : __int_as_float(0xff800000);  // -inf
}

}  // namespace

void widen_rows_cuda(const WidenRowsParams& p, Stream stream) {
  constexpr int kMostRows = 65535;  // blocks of a grid along y
  if (p.n_rows == 0) return;
  const auto rows = static_cast<unsigned>(p.n_rows < kMostRows ? p.n_rows : kMostRows);
  cuda::launch(widen_rows, dim3(cuda::blocks_for(p.to, kThreads), rows), kThreads, stream, p);
}

}  // namespace tandem
