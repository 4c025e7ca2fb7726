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
  const int32_t slot = p.slot[i];
  if (kStore) {
    if (slot >= 0) p.last[slot] = p.ids[i];
  } else {
    const int32_t id = slot < 0 ? 0 : p.last[slot];
    p.ids[i] = p.limit > 0 && id >= p.limit ? 0 : id;
  }
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
