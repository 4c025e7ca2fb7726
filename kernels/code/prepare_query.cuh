#pragma once
// Whole numbers of a block's queries, and their scores of a sample of the keys (key_ranks.h).
#include "kernels/code/code_numbers.h"
#include "kernels/code/code_tile.cuh"
#include "kernels/code/rotate.cuh"
#include "kernels/code/sampled_score.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::coded {

inline constexpr int kPrepareThreads = 1024, kPrepareWarps = kPrepareThreads / cuda::kWarp;
static_assert(KeySample::kTileKeys == kTile);

/// Of up to kHeads heads of a KV head.
template <int kHeads>
struct PreparedQueries {
  float rows[kHeads][kMostDims];
  int8_t q[kHeads * kMostDims];
  DeviceCodeQuery queries[kHeads];
  SampledScores<kHeads> sampled;
};

/// A warp makes the whole numbers of query i of the block.
template <class T, int kHeads>
__device__ void make_query(const ChooseCodedParams& p, const CodedList& list, int i,
                           PreparedQueries<kHeads>& s) {
  const DeviceCodes& codes = p.codes;
  const int d = codes.d, dims = codes.dims, lane = lane_of();
  const T* q = static_cast<const T*>(p.q) + (int64_t{list.row} * p.n_heads + list.head + i) * d;
  const float* frame =
      codes.frames + list.slot * codes.frame_slot_stride + list.kv_head * codes.frame_head_stride;
  float* const row = s.rows[i];
  float share = 0, center = 0;
  for (int c = lane; c < d; c += cuda::kWarp) {
    row[c] = cuda::to_float(q[c]);
    share = fmaf(row[c], frame[d + c], share);
    center = fmaf(row[c], frame[c], center);
  }
  share = cuda::warp_sum(share);
  center = cuda::warp_sum(center);
  for (int c = lane; c < dims; c += cuda::kWarp)
    row[c] = c < d ? row[c] - share * frame[d + c] : 0.0f;
  __syncwarp();
  rotate_row(row, codes.signs, dims, lane);
  float step = 0;
  for (int c = lane; c < dims; c += cuda::kWarp) {
    const float x = fabsf(row[c]);
    step = fmaxf(step, fmaxf(x / kMostQuery, cuda::warp_sum(x) / kMostQuerySum));
  }
  step = cuda::warp_max(step);
  int total = 0;
  for (int c = lane; c < dims; c += cuda::kWarp) {
    const int x = step > 0 ? static_cast<int>(rintf(row[c] / step)) : 0;
    s.q[i * dims + c] = static_cast<int8_t>(x);
    p.scratch.q[(list.local + i) * dims + c] = static_cast<int8_t>(x);
    total += x;
  }
  total = __reduce_add_sync(cuda::kAllLanes, total);
  if (lane != 0) return;
  const CodeGains gains =
      code_gains(step, share, p.scale, {frame[2 * d], frame[2 * d + 1]}, codes.bits);
  s.queries[i] = {.sign_gain = gains.sign,
                  .gain = gains.all,
                  .axis_gain = gains.axis,
                  .total = static_cast<float>(total),
                  .center = center * p.scale,
                  .floor = -INFINITY};
}

/// Scores of a sample of the list's keys, tile by tile, for n queries.
template <int kHeads>
__device__ void take_sample(const ChooseCodedParams& p, const CodedList& list, int n,
                            PreparedQueries<kHeads>& s) {
  const KeySample sample(list.n);
  for (int first = 0; first < n; first += kQuad) {
    const int in_quad = min(n - first, kQuad);
    const LaneQueries lane(s.queries + first, in_quad);
#pragma unroll 1
    for (int i = warp_of(); i < sample.tiles; i += kPrepareWarps) {
      const int key = sample.key(i);
      const float2 score = score_tile(list.group(p, key), key % kCodeKeys / kTile, p.codes.dims,
                                      s.q + first * p.codes.dims, in_quad, lane);
      float(*const to)[KeySample::kMostKeys] = s.sampled.sample + first + query_of_lane();
      to[0][i * kTile + key_of_lane()] = score.x;
      to[1][i * kTile + key_of_lane()] = score.y;
    }
  }
}

}  // namespace tandem::coded
