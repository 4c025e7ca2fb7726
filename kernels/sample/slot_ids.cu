#include "kernels/cuda/launch.cuh"
#include "kernels/sample/slot_ids.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;

template <bool kStore>
__global__ void slot_ids(const SlotIdsParams p) {
  cuda::start_after_previous();
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= p.n) return;
  int32_t& last = p.last[p.slot[i]];
  if (kStore)
    last = p.ids[i];
  else
    p.ids[i] = p.limit > 0 && last >= p.limit ? 0 : last;
}

template <bool kStore>
void launch(const SlotIdsParams& p, Stream stream) {
  if (p.n == 0) return;
  cuda::launch(slot_ids<kStore>, cuda::blocks_for(p.n, kThreads), kThreads, stream, p);
}

}  // namespace

void load_slot_ids_cuda(const SlotIdsParams& p, Stream stream) { launch<false>(p, stream); }
void store_slot_ids_cuda(const SlotIdsParams& p, Stream stream) { launch<true>(p, stream); }

}  // namespace tandem
