#pragma once
// Integer softmax weights, for the bodies and CUDA kernels of this folder. Compiled without
// contraction and written without fma: each operation rounds once, so every ISA and GPU gives the
// same bits.
#include "base/log2.h"
#include "kernels/sample/sample.h"

namespace tandem {
namespace {

/// Whether top-k, top-p or min-p is on.
constexpr bool has_cuts(const KeepRule& rule, int vocab) {
  return (rule.top_k > 0 && rule.top_k < vocab) || rule.top_p < 1.0 || rule.min_p > 0;
}

/// 2^40 e^x for x <= 0, to 2e-7 relative; exactly 2^40 at 0, and below 1 from -28 down.
constexpr float scaled_exp(float x) {
  constexpr float kRounder = 0x1.8p23f;  // adding it leaves an integer in the low mantissa bits
  x = x > -28.0f ? x : -28.0f;
  const float shifted = x * kLog2E + kRounder;
  const float n = shifted - kRounder;
  // ln 2 in two parts; n times the first is exact, since that part has 9 trailing zero bits.
  const float r = (x - n * 0x1.62e4p-1f) - n * 1.42860677e-6f;
  // e^r for |r| <= ln(2)/2, minimax with the first two coefficients held at 1.
  float p = 1.37817410e-3f;
  p = p * r + 8.37366283e-3f;
  p = p * r + 4.16694842e-2f;
  p = p * r + 1.66664720e-1f;
  p = p * r + 4.99999851e-1f;
  p = p * (r * r) + r;  // e^r - 1: the sum with 1 comes last, in one rounding
  p = p + 1.0f;
  const int32_t exponent = static_cast<int32_t>(n) + kWeightBits;
  const float scale = __builtin_bit_cast(float, (exponent + 127) << 23);
  return p * scale;
}

/// The whole part of a weight.
constexpr uint64_t whole_part(float weight) {
#ifdef TANDEM_ISA_avx2
  // Vectors have no conversion to 64 bits there. Both halves are exact: a power of two divides the
  // weight, and the rest keeps its low bits.
  const auto high = static_cast<int32_t>(weight * 0x1p-20f);
  const auto low = static_cast<int32_t>(weight - static_cast<float>(high) * 0x1p20f);
  return (static_cast<uint64_t>(high) << 20) + static_cast<uint64_t>(low);
#else
  return static_cast<uint64_t>(static_cast<int64_t>(weight));
#endif
}

/// floor(2^40 e^x) for x <= 0.
constexpr uint64_t weight_of(float x) { return whole_part(scaled_exp(x)); }

/// A uniform draw from a distribution of whole weights takes the first token at which their sum
/// exceeds this: uniform * total in exact arithmetic.
constexpr uint64_t weight_before(double uniform, uint64_t total) {
  const auto u53 = static_cast<uint64_t>(uniform * 0x1p53);
  return static_cast<uint64_t>((static_cast<unsigned __int128>(u53) * total) >> 53);
}

/// Calls use(i, weight) with the weights of exp((x - max) / temperature).
template <class Use>
inline void each_weight(const float* x, int n, float max, float temperature, const Use& use) {
  if (temperature == 1.0f)  // spares a division, which takes as long as half of the rest
    for (int i = 0; i < n; ++i) use(i, weight_of(x[i] - max));
  else
    for (int i = 0; i < n; ++i) use(i, weight_of((x[i] - max) / temperature));
}

/// Returns the sum of the weights.
inline uint64_t fill_weights(uint64_t* weight, const float* x, int n, float max,
                             float temperature) {
  uint64_t sum = 0;
  each_weight(x, n, max, temperature, [&](int i, uint64_t w) {
    weight[i] = w;
    sum += w;
  });
  return sum;
}

inline uint64_t sum_weights(const float* x, int n, float max, float temperature = 1.0f) {
  uint64_t sum = 0;
  each_weight(x, n, max, temperature, [&](int, uint64_t w) { sum += w; });
  return sum;
}

/// A row whose weights are made when they are asked for; their sum is known.
struct RowWeights {
  const float* x = nullptr;
  float max = 0, temperature = 1;
  uint64_t total = 0;  // 0: the row has no meaning

  constexpr uint64_t at(int token) const { return weight_of((x[token] - max) / temperature); }
};

}  // namespace
}  // namespace tandem
