#include "kernels/channels/channel_products.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem {
namespace {

constexpr int kTile = 32, kThreads = 256, kTurns = kTile * kTile / kThreads;

/// A block a tile, which passes through shared memory so that both sides are read and written along
/// their rows.
template <class T>
__global__ void __launch_bounds__(kThreads) transpose_tiles(const TransposeRowsParams p) {
  __shared__ T tile[kTile][kTile + 1];
  cuda::start_after_previous();
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;
  const int64_t column = int64_t{blockIdx.x} * kTile, row = int64_t{blockIdx.y} * kTile;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int64_t r = row + y + i * (kThreads / kTile);
    if (r < p.n_rows && column + x < p.width)
      tile[y + i * (kThreads / kTile)][x] =
          static_cast<const T*>(p.from)[r * p.from_stride + column + x];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int64_t c = column + y + i * (kThreads / kTile);
    if (c < p.width && row + x < p.n_rows)
      static_cast<T*>(p.to)[c * p.height + p.first + row + x] = tile[x][y + i * (kThreads / kTile)];
  }
}

}  // namespace

void transpose_rows_cuda(const TransposeRowsParams& p, Stream stream) {
  if (p.n_rows == 0 || p.width == 0) return;
  cuda::with_act(p.type, [&](auto* act) {
    using T = std::remove_pointer_t<decltype(act)>;
    const dim3 grid(cuda::blocks_for(p.width, kTile), cuda::blocks_for(p.n_rows, kTile));
    cuda::launch(transpose_tiles<T>, grid, kThreads, stream, p);
  });
}

}  // namespace tandem
