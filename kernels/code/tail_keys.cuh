#pragma once
// The keys of a list that a block samples (draw_tail.h), and its threads.
#include "base/philox.h"
#include "kernels/code/draw_tail.h"
#include "kernels/code/tail_means.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/gather/list_rows.cuh"
#include "kernels/selection/tail_numbers.h"

namespace tandem::tails {

inline constexpr int kThreads = 1024, kWarps = kThreads / cuda::kWarp;
inline constexpr int kRunWords = kMeanKeys / cuda::kWarp;  // of a bit a key
static_assert(kScaleScores == kThreads, "each thread owns one score");

using cuda::lane_of;
using cuda::warp_of;

/// One list's keys.
struct TailKeys {
  const float* scores;
  int n, n_runs;
  uint32_t draw_key;

  __device__ TailKeys(const DrawTailParams& p, int64_t list, const ChoosingRow& row)
      : scores(p.scores + list * p.score_stride),
        n(row.exists() ? p.ends[row.slot] - p.begin : 0),
        n_runs((n + kMeanKeys - 1) / kMeanKeys),
        draw_key(0) {
    if (!row.exists()) return;
    const int head = static_cast<int>(list % p.n_heads),
              kv_head = head / (p.n_heads / p.n_kv_heads);
    draw_key = philox_block({{static_cast<uint32_t>(p.choosing.pos[row.number]),
                              static_cast<uint32_t>(p.layer * p.n_kv_heads + kv_head),
                              static_cast<uint32_t>(DrawPurpose::keys), 0}},
                            p.seed)
                   .w[1];
  }
  /// Reads a lane's keys of a run, key word * kWarp + lane of it at [word]; -inf beyond the last.
  __device__ void load(int run, float (&x)[kRunWords]) const {
#pragma unroll
    for (int w = 0; w < kRunWords; ++w) {
      const int i = run * kMeanKeys + w * cuda::kWarp + lane_of();
      x[w] = i < n ? scores[i] : -INFINITY;
    }
  }
};

}  // namespace tandem::tails
