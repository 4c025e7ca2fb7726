#include "kernels/cuda/launch.cuh"
#include "kernels/gather/hand_over_lists.h"

namespace tandem {
namespace {

constexpr int kThreads = 256;

/// A block a list.
__global__ void __launch_bounds__(kThreads) hand_over_lists(const HandOverListsParams p) {
  cuda::start_after_previous();
  const int64_t first = int64_t{blockIdx.x} * p.stride;
  const int n = p.count[blockIdx.x];
  const int given = handed_over(n, p.host_share), kept = n - given;
  for (int i = static_cast<int>(threadIdx.x); i < given; i += kThreads)
    p.host_ids[first + i] = p.ids[first + kept + i];
  if (threadIdx.x == 0) {
    p.host_count[blockIdx.x] = given;
    p.kept[blockIdx.x] = kept;
  }
  __threadfence_system();
}

}  // namespace

void hand_over_lists_cuda(const HandOverListsParams& p, Stream stream) {
  cuda::launch(hand_over_lists, static_cast<unsigned>(p.n_lists), kThreads, stream, p);
}

}  // namespace tandem
