#pragma once
// A KeepRule at work on the row of a group: what kept.h keeps, with the same weights.
#include <cmath>

#include "kernels/sample/row_cut.cuh"

namespace tandem::cuda::inline TANDEM_GPU_BODY {

/// Out of line: where it is used, speed is not wanted and its code would be in the way.
__device__ __noinline__ inline float divide(float x, float y) { return __fdiv_rn(x, y); }

/// x / temperature, rounded once as on the CPU.
class Temper {
 public:
  explicit Temper(float temperature)
      : temperature_(temperature),
        inverse_(temperature > 0 ? 1.0f / temperature : 0.0f),
        // So far from the ends of the exponent's range no step of the division loses bits.
        quick_(temperature >= 0x1p-60f && temperature <= 0x1p60f) {}

  __device__ float operator()(float x) const {
    if (!quick_) return divide(x, temperature_);
    // Two corrections by the exact remainder. The first brings the quotient within one spacing of
    // the exact one; from there, with a correctly rounded reciprocal, the second rounds correctly
    // (Markstein's theorem). Infinities become NaN, whose weight is 0 as well.
    float q = x * inverse_;
    q = fmaf(fmaf(-q, temperature_, x), inverse_, q);
    return fmaf(fmaf(-q, temperature_, x), inverse_, q);
  }

 private:
  float temperature_, inverse_;
  bool quick_;
};

using tandem::has_cuts;

/// A rule with what a launch works out once.
struct RowRule {
  KeepRule keep;
  Temper temper;
  uint64_t least_weight;  // of min-p

  explicit RowRule(const KeepRule& rule)
      : keep(rule),
        temper(rule.temperature),
        least_weight(rule.min_p > 0 ? static_cast<uint64_t>(
                                          std::ceil((rule.min_p < 1 ? rule.min_p : 1.0) * 0x1p40))
                                    : 0) {}
};

__device__ inline float penalized(float logit, float penalty) {
  return logit < 0 ? logit * penalty : divide(logit, penalty);
}

/// Penalises tokens of this block's part, each once however often it comes: id_of(s) for s below n.
/// marks    room for mark_bytes
template <class IdOf>
__device__ void penalize(const RowGroup& row, float penalty, uint32_t* marks, int n, IdOf&& id_of) {
  for (int w = static_cast<int>(threadIdx.x); w * 32 < row.size(); w += kRowThreads) marks[w] = 0;
  __syncthreads();
#pragma unroll 1
  for (int s = static_cast<int>(threadIdx.x); s < n; s += kRowThreads) {
    const int i = id_of(s) - row.first();
    if (i < 0 || i >= row.size()) continue;
    const uint32_t bit = 1u << (i % 32);
    if ((atomicOr(&marks[i / 32], bit) & bit) != 0) continue;
    row.logit(i) = penalized(row.logit(i), penalty);
  }
  __syncthreads();
}

/// Weights of what top-k, top-p and min-p leave of a row; 0 for the others.
class CutWeights {
 public:
  /// vocab    of the whole row
  __device__ CutWeights(const RowRule& rule, int vocab, RowGroup& row, CutShared& shared, float max)
      : rule_(rule),
        row_(row),
        max_(max),
        spread_(28.5f * rule.keep.temperature),  // a little more than has weights
        cut_(row, shared, max, spread_) {
    // A loop, so that the code of the cut is there once.
#pragma unroll 1
    for (const bool by_weight : {false, true}) {
      const KeepRule& keep = rule.keep;
      if (by_weight ? keep.top_p >= 1.0 : keep.top_k <= 0 || keep.top_k >= vocab) continue;
      cut_.narrow(
          [&](uint64_t total) -> uint64_t {
            if (!by_weight) return static_cast<uint64_t>(keep.top_k);
            const double share = ceil(keep.top_p * static_cast<double>(total));
            return share > 1.0 ? static_cast<uint64_t>(share) : 1;
          },
          [&](float x) -> uint64_t { return by_weight ? weight(x) : max_ - x < spread_; });
    }
  }
  __device__ uint64_t operator()(int i) const {
    if (!cut_.keeps(i)) return 0;
    const uint64_t w = weight(row_.logit(i));
    return w >= rule_.least_weight ? w : 0;
  }
  /// Of any token of the row, without the cuts.
  __device__ uint64_t weight(float logit) const { return weight_of(rule_.temper(logit - max_)); }
  /// Whether the cuts leave a token of the row with this logit and weight.
  __device__ bool keeps(float logit, int32_t id, uint64_t weight) const {
    return cut_.keeps(logit, id) && weight >= rule_.least_weight;
  }

 private:
  const RowRule& rule_;
  RowGroup& row_;
  float max_, spread_;
  RowCut cut_;
};

}  // namespace tandem::cuda::inline TANDEM_GPU_BODY
