#include "kernels/embed/embed_backward.h"

#include "kernels/cuda/launch.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 256;

/// A block in x has an id.
__global__ void __launch_bounds__(kThreads) embed_backward_ids(const EmbedBackwardParams p) {
  cuda::start_after_previous();
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x, dim = p.dim;
  if (c >= dim) return;
  float* const to = p.dtable + p.ids[blockIdx.x] * dim + c;
  float sum = *to;
  for (int k = p.begin[blockIdx.x]; k < p.begin[blockIdx.x + 1]; ++k)
    sum += p.dx[p.rows[k] * dim + c];
  *to = sum;
}

}  // namespace

void embed_backward_cuda(const EmbedBackwardParams& p, Stream stream) {
  if (p.n_ids == 0 || p.dim == 0) return;
  const dim3 grid(static_cast<unsigned>(p.n_ids), cuda::blocks_for(p.dim, kThreads));
  cuda::launch(embed_backward_ids, grid, kThreads, stream, p);
}

}  // namespace tandem
