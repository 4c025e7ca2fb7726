// Keys that a scan kept lie anywhere: a warp refines those of a region, a lane a key, in place.
#include "kernels/code/choose_steps.h"
#include "kernels/code/group.cuh"
#include "kernels/code/refine_coded.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / cuda::kWarp;

/// Sets the scores of the kept keys of a warp's region to score(its place there, it).
template <class Score>
__device__ void refine_region(const ListRegions& regions, int region, const Score& score) {
  KeptKey* const kept = regions.scanned + int64_t{region} * kRegionKeys;
  // Read before it is known to be there, which saves waiting for the count.
  KeptKey next = kept[lane_of()];
  const int n = regions.counts[region];
#pragma unroll 1
  for (int i = lane_of(); i < n; i += cuda::kWarp) {
    const KeptKey now = next;
    if (i + cuda::kWarp < n) next = kept[i + cuda::kWarp];
    kept[i].score = score(i, now);
  }
}

/// Block (regions, head, row); kWidth lower bits.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) refine_lists(const ChooseCodedParams p) {
  __shared__ __align__(16) uint32_t q[kMostDims / 4];
  cuda::start_after_previous();
  const CodedList list(p, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y));
  const int first = static_cast<int>(blockIdx.x) * kWarps, region = first + warp_of();
  if (first * kRegionKeys >= list.n) return;
  const DeviceCodeQuery query = p.scratch.queries[list.local];
  const auto* words = reinterpret_cast<const uint32_t*>(p.scratch.q + list.local * p.codes.dims);
  for (int w = static_cast<int>(threadIdx.x); w < p.codes.dims / 4; w += kThreads) q[w] = words[w];
  __syncthreads();
  if (region * kRegionKeys >= list.n) return;
  refine_region(ListRegions(p, list.local), region, [&](int, KeptKey kept) {
    return refine<kWidth>(p, list, query, q, static_cast<int>(kept.key), kept.score);
  });
}

/// Block (regions, KV head, row): the scores of all heads, and ranks.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) refine_sets(const ChooseCodedParams p) {
  __shared__ Group group;
  cuda::start_after_previous();
  const int heads = p.n_heads / p.n_kv_heads;
  const CodedList list(p, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y) * heads);
  const int first = static_cast<int>(blockIdx.x) * kWarps, region = first + warp_of();
  if (first * kRegionKeys >= list.n) return;
  group.load(p, list, heads);
  if (region * kRegionKeys >= list.n) return;
  float* const scores =
      scores_of(p, list.set(p), heads) + int64_t{region} * kRegionKeys * shared_scores(heads);
  refine_region(ListRegions(p, list.set(p)), region, [&](int i, KeptKey kept) {
    return group.refined_rank<kWidth>(p, list, static_cast<int>(kept.key),
                                      scores + i * shared_scores(heads));
  });
}

template <class Kernel>
void launch(Kernel one, Kernel two, int lists, const ChooseCodedParams& p, Stream stream) {
  if (p.codes.bits == 1) return;
  cuda::launch(p.codes.bits == 2 ? one : two,
               dim3(cuda::blocks_for(p.max_keys, kRegionKeys * kWarps),
                    static_cast<unsigned>(lists), static_cast<unsigned>(p.n_rows)),
               kThreads, stream, p);
}

}  // namespace

void refine_kept(const ChooseCodedParams& p, Stream stream) {
  launch(refine_lists<1>, refine_lists<2>, p.n_heads, p, stream);
}
void refine_shared(const ChooseCodedParams& p, Stream stream) {
  launch(refine_sets<1>, refine_sets<2>, p.n_kv_heads, p, stream);
}

}  // namespace tandem::coded
