#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/norm/column_sums.h"

namespace tandem {
namespace {

constexpr int kColumns = cuda::kWarp, kLanes = 16;  // of a block; lanes share the rows

template <class Dy, class X>
__global__ void __launch_bounds__(kColumns* kLanes) column_sums_block(const ColumnSumsParams p) {
  __shared__ float parts[kLanes][kColumns];
  cuda::start_after_previous();
  const int in_block = static_cast<int>(threadIdx.x) % kColumns;
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t c = int64_t{blockIdx.x} * kColumns + in_block, dim = p.dim;
  float sum = 0;
  if (c < dim)
    for (int64_t r = lane; r < p.n_rows; r += kLanes) {
      float term = cuda::to_float(static_cast<const Dy*>(p.dy)[r * dim + c]);
      if (p.x != nullptr) {
        const int64_t row = p.rows == nullptr ? r : p.rows[r];
        term *= cuda::to_float(static_cast<const X*>(p.x)[row * dim + c]) * p.scale[r];
      }
      sum += term;
    }
  parts[lane][in_block] = sum;
  __syncthreads();
  if (lane != 0 || c >= dim) return;
  for (int l = 1; l < kLanes; ++l) sum += parts[l][in_block];
  p.sums[c] += sum;
}

}  // namespace

void column_sums_cuda(const ColumnSumsParams& p, Stream stream) {
  if (p.n_rows == 0 || p.dim == 0) return;
  cuda::with_act(p.dy_type, [&](auto* dy) {
    cuda::with_act(p.x_type, [&](auto* x) {
      using Dy = std::remove_pointer_t<decltype(dy)>;
      using X = std::remove_pointer_t<decltype(x)>;
      cuda::launch(column_sums_block<Dy, X>, dim3(cuda::blocks_for(p.dim, kColumns)),
                   kColumns * kLanes, stream, p);
    });
  });
}

}  // namespace tandem
