#include "kernels/gather/attend_list.h"

#include <math.h>

#include "kernels/gather/chunks.h"
#include "kernels/gather/value_sum.h"

namespace tandem {
namespace {

using namespace simd;

constexpr float kInf = __builtin_inff();

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
    const Vec cosine =
        min(max((dot - set1(p.q_center)) / product, set1(-1.0f)), set1(1.0f));
    a = a - log_u_at(p, select(lt(zero(), abs(product)), cosine, zero()));
  }
  // Finite or -inf: an overflow or a NaN would spread to all keys.
  a = min(max(a, set1(-kInf)), set1(__FLT_MAX__));
  return select(first_lanes(n), a, set1(-kInf));
}

/// Softmax so far: sums relative to exp(m), that of the values in o.
struct State {
  float m = -kInf;
  Vec l = zero();
};

template <class T, int kDim>
void attend_chunk(const AttendListParams& p, const Chunk<T>& chunk, Ahead<T, kDim> ahead,
                  State& state) {
  const int d = kDim > 0 ? kDim : p.d;
  alignas(64) float a[kChunk];
  Vec most = set1(-kInf);
  for (int first = 0; first < chunk.n; first += kGroup) {
    key_dots(a + first, static_cast<const T*>(p.q), chunk.rows + 2 * first, d, ahead);
    for (int i = first; i < first + kGroup; i += Vec::kLanes) {
      const int n = chunk.n - i < 0 ? 0 : chunk.n - i < Vec::kLanes ? chunk.n - i : Vec::kLanes;
      const Vec scores = score(p, *chunk.segment, chunk.first + i, n, load(a + i));
      store(a + i, scores);
      most = max(most, scores);
    }
  }
  const float before = state.m, chunk_max = reduce_max(most);
  state.m = chunk_max > before ? chunk_max : before;
  if (state.m > -kInf) {
    const Vec m = set1(state.m), alpha = exp(set1(before) - m);
    state.l = state.l * alpha;
    for (int i = 0; i < chunk.n; i += Vec::kLanes) {
      const Vec weight = exp(load(a + i) - m);
      state.l = state.l + weight;
      store(a + i, weight);
    }
    add_values(p.o, d, alpha, a, chunk.rows + 1, chunk.n, ahead);
  }
  ahead.finish();
}

template <class T, int kDim>
void attend(const AttendListParams& p) {
  for (int c = 0; c < p.d; ++c) p.o[c] = 0;
  State state;
  Chunk<T> chunks[2];
  Cursor<T> cursor(p);
  cursor.next(chunks[0]);
  Ahead<T, kDim>(chunks[0], p.d).finish();
  for (int turn = 0; chunks[turn].n > 0; turn ^= 1) {
    cursor.next(chunks[turn ^ 1]);
    attend_chunk<T, kDim>(p, chunks[turn], {chunks[turn ^ 1], p.d}, state);
  }
  const float l = reduce_add(state.l);
  *p.lse = l > 0 ? state.m + logf(l) : -kInf;
  const Vec scale = set1(l > 0 ? 1.0f / l : 0.0f);
  int c = 0;
  for (; c + Vec::kLanes <= p.d; c += Vec::kLanes) store(p.o + c, load(p.o + c) * scale);
  if (c < p.d) store_n(p.o + c, load_n(p.o + c, p.d - c) * scale, p.d - c);
}

/// The usual widths of a head get their own code: the fetches of the next rows have to be few
/// instructions, since those that wait for a page walk keep only what is near them from waiting.
template <class T>
void attend_any(const AttendListParams& p) {
  switch (p.d) {
    case 64: return attend<T, 64>(p);
    case 128: return attend<T, 128>(p);
    default: return attend<T, 0>(p);
  }
}

}  // namespace

void TANDEM_ISA_FN(attend_list)(const AttendListParams& p) {
  if (p.dtype == DType::bf16)
    attend_any<bf16>(p);
  else
    attend_any<float>(p);
}

}  // namespace tandem
