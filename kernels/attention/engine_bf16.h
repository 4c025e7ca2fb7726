#pragma once
// The multiplies on pairs of bf16 (vdpbf16ps): the f32 multiply with pairs along d, or of keys, as
// elements. Needs an even head_dim.
#include "kernels/attention/flash.h"
#include "kernels/attention/tile_f32.h"

namespace tandem {
namespace {

/// 2^x for probabilities that are rounded to bf16. Relative error <= 7.6e-5, a fiftieth of a bf16
/// unit; 2^-inf = 0, and no clamp is needed: vreduceps makes the fraction of -inf zero and
/// vscalefps takes the floor of its exponent. Five instructions.
TANDEM_INLINE simd::Vec fast_exp2(simd::Vec x) {
  const simd::Vec f{_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  simd::Vec p = fma(simd::set1(0.0780245227f), f, simd::set1(0.226067155f));
  p = fma(p, f, simd::set1(0.695833541f));
  p = fma(p, f, simd::set1(0.999925219f));
  return {_mm512_scalef_ps(p.v, x.v)};
}

TANDEM_INLINE __m512bh as_bf16(__m512i x) { return reinterpret_cast<__m512bh>(x); }

/// A product of pairs of bf16.
using PairProduct = Product<int32_t>;

/// As multiply_tile, all vectors and the rows from first_i on.
template <int NV, int NI>
TANDEM_INLINE void multiply_pair_tile(const PairProduct& p, int first_i) {
  float* c = p.c.at + first_i * kW;
  const int32_t* a = p.a.at + first_i * p.a.i;
  Vec sum[NV][NI];
#pragma GCC unroll 16
  for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i)
      sum[v][i] = p.alpha.at == nullptr
                      ? simd::zero()
                      : simd::load(c + v * p.c.v + i * kW) * simd::load(p.alpha.at + v * kW);
  for (int k = 0; k < p.n_k; ++k) {
    __m512i bk[NV];
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) bk[v] = _mm512_loadu_si512(p.b.at + v * p.b.v + k * kW);
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i) {
      int32_t pair;
      memcpy(&pair, a + i * p.a.i + k * p.a.k, sizeof pair);
      const __m512bh both = as_bf16(_mm512_set1_epi32(pair));
#pragma GCC unroll 16
      for (int v = 0; v < NV; ++v)
        sum[v][i].v = _mm512_dpbf16_ps(sum[v][i].v, both, as_bf16(bk[v]));
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i) simd::store(c + v * p.c.v + i * kW, sum[v][i]);
}

template <int NV>
void multiply_bf16(const PairProduct& p, int n_i, Ahead ahead) {
  constexpr int kRows = NV == 1 ? 12 : NV == 2 ? 8 : 6;  // at least 12 chains, at most 24
  int i = 0;
  for (; i + kRows <= n_i; i += kRows) {
    ahead.fetch_rows(i, kRows);
    multiply_pair_tile<NV, kRows>(p, i);
  }
  for (; i + 2 <= n_i; i += 2) {
    ahead.fetch_rows(i, 2);
    multiply_pair_tile<NV, 2>(p, i);
  }
  for (; i < n_i; ++i) multiply_pair_tile<NV, 1>(p, i);
}

/// Elements of C and B and their alphas lie kW apart: p.c.i, p.b.k and p.alpha.v.
inline void multiply_bf16(int nv, const PairProduct& p, int n_i, Ahead ahead) {
  switch (nv) {
    case 1:
      return multiply_bf16<1>(p, n_i, ahead);
    case 2:
      return multiply_bf16<2>(p, n_i, ahead);
    case 3:
      return multiply_bf16<3>(p, n_i, ahead);
    default:
      return multiply_bf16<4>(p, n_i, ahead);
  }
}

/// n vectors of queries as pairs along d: [vector][padded d / 2][kW], zeros from d on.
inline void load_query_pairs(Block& b, int n) {
  const int stride = padded_dim(b.d) / 2 * kW;
  memset(b.scratch.q, 0, sizeof(float) * static_cast<size_t>(n * stride));
  for (int lane = 0; lane < n * kW; ++lane) {
    const bf16* q =
        static_cast<const bf16*>(b.params->q) + b.head_at(lane) * static_cast<size_t>(b.d);
    float* to = b.scratch.q + lane / kW * stride + lane % kW;
    for (int c = 0; c < b.d; c += 2)
      memcpy(to + c / 2 * kW, q + c, sizeof(bf16) * static_cast<size_t>(b.d - c < 2 ? 1 : 2));
  }
}

/// Probabilities of keys [begin, end) of vector j of the group as pairs of keys: [key / 2][kW].
template <int kStepKeys>
TANDEM_INLINE void pair_probabilities(const Block& b, int j, int begin, int end) {
  const float* s = b.scratch.s + j * kStepKeys * kW;
  float* p = b.scratch.p + j * kStepKeys / 2 * kW;
  // cvtne2 leaves the even key's 16 values below the odd key's: interleave them.
  const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                       23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int k = begin; k < end; k += 2) {
    const __m512bh both =
        _mm512_cvtne2ps_pbh(simd::load(s + (k + 1) * kW).v, simd::load(s + k * kW).v);
    _mm512_storeu_si512(p + k / 2 * kW,
                        _mm512_permutexvar_epi16(zip, reinterpret_cast<__m512i>(both)));
  }
}

/// Values as pairs of keys: [key / 2][d], zero where unwritten.
inline void pair_values(float* to, const bf16* v, int d, int n_valid) {
  for (int k = 0; k < n_valid; k += 2)
    for (int c = 0; c < d; c += kW) {
      const int n = d - c < kW ? d - c : kW;
      const auto half = [&](int key) {
        return key < n_valid ? _mm512_castps_si512(simd::load_n(v + key * d + c, n).v)
                             : _mm512_setzero_si512();
      };
      const __m512i pair = _mm512_or_si512(_mm512_srli_epi32(half(k), 16), half(k + 1));
      simd::store_n(to + k / 2 * d + c, Vec{_mm512_castsi512_ps(pair)}, n);
    }
}

struct EngineBf16 {
  using Element = bf16;
  static constexpr int kStepPages = 1, kGroup = 4;

  static TANDEM_INLINE Vec exp2_score(Vec x) { return fast_exp2(x); }
  static constexpr bool kScaledQueries = false, kFew = false;
  static void step(Block& b, int page, int end) { attend_step<EngineBf16>(b, page, end); }
  static void load_queries(Block& b) { load_query_pairs(b, b.n_vectors); }

  static void begin_page(Block& b, int index, const bf16* k, const bf16* v, int n_valid) {
    pair_values(b.scratch.v, v, b.d, n_valid);
    b.k_page[index] = k;
    b.n_valid[index] = n_valid;
  }

  static void scores(const Block& b, int first, int n, int index, float* s, int sv) {
    const int stride = padded_dim(b.d) / 2 * kW;
    multiply_bf16(n,
                  {.c = {s, sv, kW},
                   .a = {static_cast<const int32_t*>(b.k_page[index]), b.d / 2, 1},
                   .b = {b.scratch.q + first * stride, stride, kW},
                   .n_k = b.d / 2},
                  b.n_valid[index],
                  {first == 0 ? b.next_k[index] : nullptr, b.d * int{sizeof(bf16)}});
  }

  static void probabilities(const Block& b, int, int j, int n_keys) {
    pair_probabilities<kPageTokens>(b, j, 0, n_keys);
  }

  static void accumulate(const Block& b, int first, int n, const int* pages, int) {
    const int stride = padded_dim(b.d) * kW;
    multiply_bf16(n,
                  {.c = {b.scratch.o + first * stride, stride, kW},
                   .a = {reinterpret_cast<const int32_t*>(b.scratch.v), 1, b.d},
                   .b = {b.scratch.p, kPageTokens / 2 * kW, kW},
                   .n_k = (b.n_valid[pages[0]] + 1) / 2,
                   .alpha = {b.scratch.alpha + first * kW, kW}},
                  b.d,
                  {first == 0 ? b.next_v[pages[0]] : nullptr, kPageTokens * int{sizeof(bf16)}});
  }
};

}  // namespace
}  // namespace tandem
