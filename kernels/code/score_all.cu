// The scores of all keys by signs, for tails that are sampled: choices keep only the best.
#include "kernels/code/choose_steps.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::coded {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / cuda::kWarp;

/// Block (regions, quad, row): a region a warp.
__global__ void __launch_bounds__(kThreads) score_all(const ChooseCodedParams p) {
  cuda::start_after_previous();
  const Quad quad(p, static_cast<int>(blockIdx.y));
  const CodedList list(p, static_cast<int>(blockIdx.z), quad.first);
  const int region = static_cast<int>(blockIdx.x) * kWarps + warp_of();
  const int begin = region * kRegionKeys, end = min(list.n, begin + kRegionKeys);
  const LaneQueries lane(p.scratch.queries + list.local, begin < end ? quad.n : 0);
  const int8_t* q = p.scratch.q + list.local * p.codes.dims;
  float* to = p.tail_scores + (list.local + query_of_lane()) * p.scratch.key_stride;
#pragma unroll 1
  for (int key = begin; key < end; key += kTile) {
    const float2 score =
        score_tile(list.group(p, key), key % kCodeKeys / kTile, p.codes.dims, q, quad.n, lane);
    const int own = key + key_of_lane();
    if (own >= end) continue;
    if (query_of_lane() < quad.n) to[own] = score.x;
    if (query_of_lane() + 1 < quad.n) to[p.scratch.key_stride + own] = score.y;
  }
}

}  // namespace

void leave_scores(const ChooseCodedParams& p, Stream stream) {
  cuda::launch(score_all,
               dim3(cuda::blocks_for(p.max_keys, kRegionKeys * kWarps),
                    static_cast<unsigned>(quads_of(p)), static_cast<unsigned>(p.n_rows)),
               kThreads, stream, p);
}

}  // namespace tandem::coded
