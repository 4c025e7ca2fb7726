#pragma once
// Scores of listed keys from their products with the query. Included by attend_list.inl only.
#include "kernels/gather/attend_list.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// log_u at the lanes' cosines, which lie in [-1, 1].
TANDEM_INLINE Vec log_u_at(const AttendListParams& p, Vec cosine) {
  const Vec x = (cosine + set1(1.0f)) * set1(0.5f * static_cast<float>(p.log_u_intervals));
#if defined(TANDEM_ISA_avx512) || defined(TANDEM_ISA_avx512_bf16)
  const __m512i i =
      _mm512_min_epi32(_mm512_cvttps_epi32(x.v), _mm512_set1_epi32(p.log_u_intervals - 1));
  const Vec at{_mm512_i32gather_ps(i, p.log_u, 4)}, next{_mm512_i32gather_ps(i, p.log_u + 1, 4)};
  return fma(x - Vec{_mm512_cvtepi32_ps(i)}, next - at, at);
#else
  float lanes[Vec::kLanes];
  store(lanes, x);
  for (int lane = 0; lane < Vec::kLanes; ++lane) {
    int i = static_cast<int>(lanes[lane]);
    i = i < p.log_u_intervals ? i : p.log_u_intervals - 1;
    const float at = p.log_u[i], part = lanes[lane] - static_cast<float>(i);
    lanes[lane] = at + part * (p.log_u[i + 1] - at);
  }
  return load(lanes);
#endif
}

/// Norms of the n tokens at ids; 0 in the other lanes.
TANDEM_INLINE Vec norms_of(const float* norms, const int32_t* ids, int n) {
#if defined(TANDEM_ISA_avx512) || defined(TANDEM_ISA_avx512_bf16)
  const __mmask16 mask = first_lanes(n).v;
  return {_mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, _mm512_maskz_loadu_epi32(mask, ids),
                                   norms, 4)};
#else
  float lanes[Vec::kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = norms[ids[i]];
  return load(lanes);
#endif
}

/// Scores of the n keys of a segment at `first` from their products with q; -inf in other lanes.
TANDEM_INLINE Vec score(const AttendListParams& p, const KeySegment& s, int first, int n, Vec dot) {
  Vec a = dot * set1(p.scale);
  if (s.bias != nullptr) a = a + load_n(s.bias + first, n);
  if (s.norms != nullptr) {
    const Vec product = set1(p.q_norm) * norms_of(s.norms, s.ids + first, n);
    // max first: it makes -1 of a NaN, so that the table is never left.
    const Vec cosine = min(max((dot - set1(p.q_center)) / product, set1(-1.0f)), set1(1.0f));
    a = a - log_u_at(p, select(lt(zero(), abs(product)), cosine, zero()));
  }
  // Finite or -inf: an overflow or a NaN would spread to all keys.
  a = min(max(a, set1(-kInf)), set1(__FLT_MAX__));
  return select(first_lanes(n), a, set1(-kInf));
}

}  // namespace
}  // namespace tandem
