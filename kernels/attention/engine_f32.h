#pragma once
// The multiplies in f32 on Vec. bf16 pages are converted once per block of queries.
#include "kernels/attention/flash.h"

namespace tandem {
namespace {

/// Rows of `a` (element (i, k) at a[i * ai + k * ak], broadcast) times vectors of `b`
/// ([vector][k][kW], bv floats between vectors) into c ([vector][i][kW], cv between vectors).
/// Starts from zero, or from c * alpha. One chain of FMAs over k per lane and element, whatever NV
/// and NI.
template <int NV, int NI>
TANDEM_INLINE void tile_f32(float* c, int cv, const float* a, int ai, int ak, const float* b,
                            int bv, int n_k, const float* alpha) {
  Vec sum[NV][NI];
#pragma GCC unroll 16
  for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i)
      sum[v][i] = alpha == nullptr ? simd::zero()
                                   : simd::load(c + v * cv + i * kW) * simd::load(alpha + v * kW);
  for (int k = 0; k < n_k; ++k) {
    Vec bk[NV];
#pragma GCC unroll 16
    for (int v = 0; v < NV; ++v) bk[v] = simd::load(b + v * bv + k * kW);
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i) {
      const Vec ak_i = simd::set1(a[i * ai + k * ak]);
#pragma GCC unroll 16
      for (int v = 0; v < NV; ++v) sum[v][i] = fma(ak_i, bk[v], sum[v][i]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < NI; ++i) simd::store(c + v * cv + i * kW, sum[v][i]);
}

template <int NV>
void multiply_f32(float* c, int cv, const float* a, int ai, int ak, int n_i, const float* b, int bv,
                  int n_k, const float* alpha, Ahead ahead) {
  constexpr int kRows =
      NV == 1 ? 8 : 4;  // enough chains to hide the FMA's latency, within 16 registers
  int i = 0;
  for (; i + kRows <= n_i; i += kRows) {
    ahead.fetch_rows(i, kRows);
    tile_f32<NV, kRows>(c + i * kW, cv, a + i * ai, ai, ak, b, bv, n_k, alpha);
  }
  for (; i < n_i; ++i) tile_f32<NV, 1>(c + i * kW, cv, a + i * ai, ai, ak, b, bv, n_k, alpha);
}

// Chains per broadcast: four vectors where there are 32 registers, two with 16.
#if defined(TANDEM_ISA_avx2) || defined(TANDEM_ISA_scalar)
constexpr int kGroupVectors = 2;
#else
constexpr int kGroupVectors = 4;
#endif

inline void multiply_f32(int nv, float* c, int cv, const float* a, int ai, int ak, int n_i,
                         const float* b, int bv, int n_k, const float* alpha, Ahead ahead) {
  if (nv == 1) return multiply_f32<1>(c, cv, a, ai, ak, n_i, b, bv, n_k, alpha, ahead);
  if (nv == 2) return multiply_f32<2>(c, cv, a, ai, ak, n_i, b, bv, n_k, alpha, ahead);
  if constexpr (kGroupVectors > 2) {
    if (nv == 3) return multiply_f32<3>(c, cv, a, ai, ak, n_i, b, bv, n_k, alpha, ahead);
    multiply_f32<4>(c, cv, a, ai, ak, n_i, b, bv, n_k, alpha, ahead);
  }
}

inline void widen(float* to, const bf16* from, int n) {
  int i = 0;
  for (; i + kW <= n; i += kW) simd::store(to + i, simd::load(from + i));
  simd::store_n(to + i, simd::load_n(from + i, n - i), n - i);
}

template <class T>
struct EngineF32 {
  using Element = T;
  static constexpr int kStepPages = 1, kGroup = kGroupVectors;

  static TANDEM_INLINE Vec exp2_score(Vec x) { return exp2(x); }

  static void load_queries(Block& b) {
    for (int lane = 0; lane < b.n_vectors * kW; ++lane) {
      const T* q = static_cast<const T*>(b.params->q) + b.head_at(lane) * static_cast<size_t>(b.d);
      float* to = b.scratch.q + lane / kW * padded_dim(b.d) * kW + lane % kW;
      for (int c = 0; c < b.d; ++c) to[c * kW] = simd::to_f32(q[c]);
    }
  }

  static void begin_page(Block& b, int index, const float* k, const float* v, int n_valid) {
    b.k_page[index] = k;
    b.v_page[index] = v;
    b.n_valid[index] = n_valid;
  }
  static void begin_page(Block& b, int index, const bf16* k, const bf16* v, int n_valid) {
    widen(b.scratch.k, k, n_valid * b.d);
    widen(b.scratch.v, v, n_valid * b.d);
    begin_page(b, index, b.scratch.k, b.scratch.v, n_valid);
  }

  static void scores(const Block& b, int first, int n, int index, float* s, int sv) {
    const int stride = padded_dim(b.d) * kW;
    multiply_f32(n, s, sv, static_cast<const float*>(b.k_page[index]), b.d, 1, b.n_valid[index],
                 b.scratch.q + first * stride, stride, b.d, nullptr,
                 {first == 0 ? b.next_k[index] : nullptr, b.d * int{sizeof(T)}});
  }

  static void probabilities(const Block&, int, int, int) {}

  static void accumulate(const Block& b, int first, int n, const int* pages, int) {
    const int stride = padded_dim(b.d) * kW;
    multiply_f32(n, b.scratch.o + first * stride, stride,
                 static_cast<const float*>(b.v_page[pages[0]]), 1, b.d, b.d, b.scratch.s,
                 kMaxStepKeys * kW, b.n_valid[pages[0]], b.scratch.alpha + first * kW,
                 {first == 0 ? b.next_v[pages[0]] : nullptr, kPageTokens * int{sizeof(T)}});
  }
};

}  // namespace
}  // namespace tandem
