#pragma once
// The multiplies in f32 on Vec. Pages of bf16 are widened once per block of queries.
#include "kernels/attention/flash.h"
#include "kernels/attention/tile_f32.h"

namespace tandem {
namespace {

// Vectors of queries that go through a page together, and rows of a tile for fewer. With 16
// registers, 3 vectors and 4 rows are 12 chains of FMAs, enough to hide their latency, and leave
// one register for each operand; with 32, 4 vectors load less a chain. A block of queries holds
// whole groups, and enough of them that widening a page of bf16 costs some percent of their
// products.
#if defined(TANDEM_ISA_avx2) || defined(TANDEM_ISA_scalar)
constexpr int kGroupVectors = 3, kQueryBlock = 96;
constexpr int tile_rows(int nv) { return nv == 1 ? 8 : nv == 2 ? 6 : 4; }
#else
constexpr int kGroupVectors = 4, kQueryBlock = 128;
constexpr int tile_rows(int nv) { return nv == 4 ? 4 : 8; }
#endif

template <int NV>
void multiply_f32(const Product<>& p, int n_i, Ahead ahead) {
  constexpr int kRows = tile_rows(NV);
  int i = 0;
  for (; i + kRows <= n_i; i += kRows) {
    ahead.fetch_rows(i, kRows);
    multiply_tile<NV, kRows>(p, i);
  }
  for (; i + 4 <= n_i; i += 4) {
    ahead.fetch_rows(i, 4);
    multiply_tile<NV, 4>(p, i);
  }
  for (; i < n_i; ++i) multiply_tile<NV, 1>(p, i);
}

inline void multiply_f32(int nv, const Product<>& p, int n_i, Ahead ahead) {
  if (nv == 1) return multiply_f32<1>(p, n_i, ahead);
  if (nv == 2) return multiply_f32<2>(p, n_i, ahead);
  if (nv == 3) return multiply_f32<3>(p, n_i, ahead);
  if constexpr (kGroupVectors > 3) multiply_f32<4>(p, n_i, ahead);
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

  static TANDEM_INLINE Vec exp2_score(Vec x) { return exp2_nonpositive(x); }
  static constexpr bool kFew = false;
  static void step(Block& b, int page, int end) { attend_step<EngineF32>(b, page, end); }
  // Queries are scaled, so that scores are exponents of 2 as they are.
  static constexpr bool kScaledQueries = true;

  static void load_queries(Block& b) {
    const float scale = b.params->scale * kLog2E;
    for (int lane = 0; lane < b.n_vectors * kW; ++lane) {
      const T* q = static_cast<const T*>(b.params->q) + b.head_at(lane) * static_cast<size_t>(b.d);
      float* to = b.scratch.q + lane / kW * padded_dim(b.d) * kW + lane % kW;
      for (int c = 0; c < b.d; ++c) to[c * kW] = simd::to_f32(q[c]) * scale;
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
    multiply_f32(n,
                 {.c = {s, sv, kW},
                  .a = {static_cast<const float*>(b.k_page[index]), b.d, 1},
                  .b = {b.scratch.q + first * stride, stride, kW},
                  .n_k = b.d},
                 b.n_valid[index], {first == 0 ? b.next_k[index] : nullptr, b.d * int{sizeof(T)}});
  }

  static void probabilities(const Block&, int, int, int) {}

  static void accumulate(const Block& b, int first, int n, const int* pages, int) {
    const int stride = padded_dim(b.d) * kW;
    multiply_f32(n,
                 {.c = {b.scratch.o + first * stride, stride, kW},
                  .a = {static_cast<const float*>(b.v_page[pages[0]]), 1, b.d},
                  .b = {b.scratch.s, kStepPages * kPageTokens * kW, kW},
                  .n_k = b.n_valid[pages[0]],
                  .alpha = {b.scratch.alpha + first * kW, kW}},
                 b.d, {first == 0 ? b.next_v[pages[0]] : nullptr, kPageTokens * int{sizeof(T)}});
  }
};

}  // namespace
}  // namespace tandem
