#include <math.h>
#include <string.h>

#include "kernels/lowbit/numbers.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kKeys = 16;  // decoded at a time
constexpr int kMostDim = 512;

/// Softmax so far: sums relative to exp(m), that of values in the call's o.
struct State {
  float m[kCodedQueries], l[kCodedQueries];
};

/// Rows of numbers of tokens [first, first + n) of a page; of those beyond 0.
template <class PlanesOf>
TANDEM_INLINE void decode(float* y, int d, int first, int n, const PlanesOf& planes_of) {
  for (int i = 0; i < n; ++i) {
    const Planes planes = planes_of(first + i);
    for (int c = 0; c < d; c += kW) store(y + i * d + c, numbers_at(planes, c));
  }
  memset(y + n * d, 0, sizeof(float) * static_cast<size_t>((kKeys - n) * d));
}

TANDEM_INLINE float dot(const float* x, const float* y, int d) {
  Vec sum = zero();
  for (int c = 0; c < d; c += kW) sum = fma(load(x + c), load(y + c), sum);
  return reduce_add(sum);
}

/// n <= kKeys tokens of a page from `first` on.
void attend_some(const AttendCodedParams& p, const uint8_t* page, int first, int n, State& state,
                 float* y) {
  const CodedLayout& l = p.layout;
  const int d = l.d;
  alignas(64) float weights[kCodedQueries][kKeys];
  f16 scales[kKeys][2], value_scales[kKeys];
  memcpy(scales, page + l.scales() + 4 * first, sizeof(f16) * 2 * static_cast<size_t>(n));
  memcpy(value_scales, page + l.value_scales() + 2 * first, sizeof(f16) * static_cast<size_t>(n));
  decode(y, d, first, n, [&](int t) { return key_planes(page, l, t); });
  const float unit = unit_of(l.bits.k - 4), value_unit = unit_of(l.bits.v - 4);
  for (int i = 0; i < n; ++i) {
    const float e = to_float(scales[i][0]) * unit, share = to_float(scales[i][1]);
    for (int q = 0; q < p.n_queries; ++q)
      weights[q][i] = dot(p.q + q * d, y + i * d, d) * e + p.along[q] * share + p.center[q];
  }
  float grow[kCodedQueries];
  for (int q = 0; q < p.n_queries; ++q) {
    float* const w = weights[q];
    for (int i = n; i < kKeys; ++i) w[i] = -kInf;
    float most = state.m[q];
    for (int i = 0; i < n; ++i) most = w[i] > most ? w[i] : most;
    const float base = most > -kInf ? most : 0;
    grow[q] = reduce_max(exp(set1(state.m[q] - base)));
    float sum = 0;
    for (int i = 0; i < kKeys; i += kW) {
      const Vec weight = exp(load(w + i) - set1(base));
      store(w + i, weight);
      sum += reduce_add(weight);
    }
    state.l[q] = state.l[q] * grow[q] + sum;
    state.m[q] = most;
    for (int i = 0; i < n; ++i) w[i] *= to_float(value_scales[i]) * value_unit;
  }
  decode(y, d, first, n, [&](int t) { return value_planes(page, l, t); });
  for (int q = 0; q < p.n_queries; ++q)
    for (int c = 0; c < d; c += kW) {
      Vec sum = load(p.o + q * d + c) * set1(grow[q]);
      for (int i = 0; i < n; ++i) sum = fma(set1(weights[q][i]), load(y + i * d + c), sum);
      store(p.o + q * d + c, sum);
    }
}

}  // namespace

void TANDEM_ISA_FN(attend_coded)(const AttendCodedParams& p, Range tokens) {
  const int d = p.layout.d;
  alignas(64) float y[kKeys * kMostDim];
  State state;
  for (int q = 0; q < p.n_queries; ++q) {
    state.m[q] = -kInf;
    state.l[q] = 0;
  }
  memset(p.o, 0, sizeof(float) * static_cast<size_t>(p.n_queries * d));
  for (int t = tokens.begin; t < tokens.end;) {
    const int first = t % kPageTokens;
    // Groups begin at absolute multiples.
    const int n = least(kKeys - first % kKeys, tokens.end - t);
    const int64_t id = p.pages[t / kPageTokens];
    const uint8_t* page = p.pool + (id * p.n_kv_heads + p.kv_head) * p.layout.page_bytes();
    attend_some(p, page, first, n, state, y);
    t += n;
  }
  for (int q = 0; q < p.n_queries; ++q) {
    const bool any = state.l[q] > 0 || state.l[q] != state.l[q];
    p.lse[q] = any ? state.m[q] + logf(state.l[q]) : -kInf;
    const Vec scale = set1(any ? 1.0f / state.l[q] : 0.0f);
    for (int c = 0; c < d; c += kW) store(p.o + q * d + c, load(p.o + q * d + c) * scale);
  }
}

}  // namespace tandem
