#pragma once
// How far the estimated weights of a sample's keys are from their true ones, and the error of the
// list's sum of weights by it: policies/hybrid_tail.cpp on a GPU, by a whole block.
#include <math.h>

#include "base/page.h"
#include "kernels/code/tail_keys.cuh"
#include "kernels/cuda/number.cuh"

namespace tandem::tails {

__device__ inline double block_sum(double x) {
  double all;
  cuda::sum_before<kThreads>(x, all);
  return all;
}

/// Sum of estimated weights, none above exp(most), relative to exp(origin).
__device__ inline double mass_below(const TailKeys& keys, float most, float origin) {
  double sum = 0;
#pragma unroll 1
  for (int run = warp_of(); run < keys.n_runs; run += kWarps) {
    float x[kRunWords];
    keys.load(run, x);
#pragma unroll
    for (int w = 0; w < kRunWords; ++w)
      sum += static_cast<double>(exp2f((fminf(x[w], most) - origin) * kLog2E));
  }
  return block_sum(sum);
}

/// One list, as its samples are judged.
template <class T>
class TailJudge {
 public:
  __device__ TailJudge(const DrawTailParams& p, int64_t list, const ChoosingRow& row,
                       const TailKeys& keys)
      : keys_(keys),
        threshold_(p.threshold[list]),
        center_(double{p.by_error.origin[list]} - double{threshold_}),
        exact_(p.by_error.exact_mass[list]),
        mass_(mass_below(keys, threshold_, threshold_)),
        scale_(p.by_error.scale),
        d_(p.by_error.d),
        first_(p.begin),
        n_kv_heads_(p.n_kv_heads),
        kv_head_(static_cast<int>(list % p.n_heads) / (p.n_heads / p.n_kv_heads)),
        pages_(p.by_error.page_table + int64_t{row.slot} * p.by_error.max_pages),
        k_(static_cast<const T*>(p.by_error.k_pool)) {
    const T* q = static_cast<const T*>(p.by_error.q) +
                 (int64_t{row.number} * p.n_heads + list % p.n_heads) * d_;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int c = j * cuda::kWarp + lane_of();
      q_[j] = c < d_ ? cuda::to_float(q[c]) : 0.0f;
    }
  }

  /// The error that is not passed in 95 of 100 cases, of n keys that a scale took.
  __device__ double error_of(float log_scale, const uint32_t* taken, int n) const {
    double square = 0, fourth = 0, drawn = 0, correction = 0, certain = 0;  // of lane 0
#pragma unroll 1
    for (int word = warp_of(); word < keys_.n_runs * kRunWords; word += kWarps)
      for (uint32_t bits = taken[word]; bits != 0; bits &= bits - 1) {
        const int i = word * cuda::kWarp + __ffs(static_cast<int>(bits)) - 1;
        const float dot = dot_of(i);
        if (lane_of() != 0) continue;
        const double score = fminf(keys_.scores[i], threshold_);
        const float bias = fmaxf(log_scale - keys_.scores[i], 0.0f);
        const double off = exp(scale_ * dot - center_ - score) - 1;  // w / h - 1
        const double weight = exp(score - threshold_);
        drawn += weight;
        correction += off * weight * exp(double{bias});
        square += off * off;
        fourth += off * off * off * off;
        certain += bias > 0 ? 0 : 1;
      }
    square = block_sum(square);
    fourth = block_sum(fourth);
    drawn = block_sum(drawn);
    correction = block_sum(correction);
    certain = block_sum(certain);
    double deviation;
    if (certain == n) {
      // The scale of probabilities does not show: undrawn mass, if any, counts as error.
      deviation = fmax(0.0, mass_ - drawn) * fmax(1.0, n > 0 ? sqrt(square / n) : 0.0);
    } else {
      // Of a key that is drawn with probability h / c the variance is (w - h)^2 (c / h - 1), at
      // most off^2 h c.
      const double c = exp(double{log_scale} - threshold_);
      const double uncertain = fmax(0.0, mass_below(keys_, log_scale, threshold_) - certain * c);
      const double mean = square / n, of_mean = fmax(0.0, fourth / n - mean * mean) / n;
      deviation = sqrt((mean + kUpper95 * sqrt(of_mean)) * c * uncertain);
    }
    const double total = fmax(exact_ + mass_ + correction, exact_);
    return total > 0 ? kWithin95 * deviation / total : 0.0;
  }

 private:
  static constexpr int kOwn = 8;  // coordinates of a lane

  /// q.k of an indexed key, by a warp.
  __device__ float dot_of(int i) const {
    const int token = first_ + i;
    const int64_t row =
        (int64_t{pages_[token / kPageTokens]} * n_kv_heads_ + kv_head_) * kPageTokens +
        token % kPageTokens;
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int c = j * cuda::kWarp + lane_of();
      if (c < d_) dot = fmaf(q_[j], cuda::to_float(k_[row * d_ + c]), dot);
    }
    return cuda::warp_sum(dot);
  }

  const TailKeys& keys_;
  float threshold_;
  double center_, exact_, mass_, scale_;
  int d_, first_, n_kv_heads_, kv_head_;
  const int32_t* pages_;
  const T* k_;
  float q_[kOwn];
};

}  // namespace tandem::tails
