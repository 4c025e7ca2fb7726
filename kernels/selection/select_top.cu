#include "kernels/cuda/launch.cuh"
#include "kernels/selection/best_keys.cuh"
#include "kernels/selection/select_top_cuda.h"

namespace tandem {
namespace {

__global__ void __launch_bounds__(best::kThreads) select_top(const SelectTopCudaParams p) {
  __shared__ best::Shared s;
  cuda::wait_for_previous();
  const int64_t list = blockIdx.x;
  const int n = p.n[list], m = min(n, p.m[list]);
  if (threadIdx.x == 0) p.count[list] = max(m, 0) * p.run;
  if (m <= 0) return;
  int32_t* const ids = p.ids + list * p.id_stride;
  const best::Numbers scores{p.scores + list * p.score_stride};
  best::choose(s, scores, n, m, [&](int place, int key) {
    for (int i = 0; i < p.run; ++i) ids[place * p.run + i] = key * p.run + i;
  });
}

}  // namespace

void select_top_cuda(const SelectTopCudaParams& p, Stream stream) {
  if (p.n_lists == 0) return;
  cuda::launch(select_top, dim3(static_cast<unsigned>(p.n_lists)), best::kThreads, stream, p);
}

}  // namespace tandem
