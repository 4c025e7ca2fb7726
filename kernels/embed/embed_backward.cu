#include "kernels/embed/embed_backward.h"

#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;

/// A block in x has a row, and works if it is the first of its id: for all rows of that.
__global__ void __launch_bounds__(kThreads) embed_backward_rows(const EmbedBackwardParams p) {
  cuda::start_after_previous();
  const int first = static_cast<int>(blockIdx.x), id = p.ids[first];
  bool earlier = false;
  for (int r = static_cast<int>(threadIdx.x); r < first; r += kThreads) earlier |= p.ids[r] == id;
  if (__syncthreads_or(earlier)) return;
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x, dim = p.dim;
  if (c >= dim) return;
  float* const to = p.dtable + id * dim + c;
  float sum = *to;
  for (int64_t r = first; r < p.n_rows; ++r)
    if (p.ids[r] == id) sum += p.dx[r * dim + c];
  *to = sum;
}

}  // namespace

void embed_backward_cuda(const EmbedBackwardParams& p, Stream stream) {
  if (p.n_rows == 0 || p.dim == 0) return;
  const dim3 grid(static_cast<unsigned>(p.n_rows), cuda::blocks_for(p.dim, kThreads));
  cuda::launch(embed_backward_rows, grid, kThreads, stream, p);
}

}  // namespace tandem
