#pragma once
// What one step of channel_products multiplies, for each type and ISA. Included by ISA files only.
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

/// Neighbouring numbers of a row, as many as one load of 64 bytes or a pair of vectors.
template <class T>
struct Step;

template <class T>
TANDEM_INLINE Step<T> padded_step(const T* p, int n) {
  T padded[Step<T>::kNumbers] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return Step<T>::load(padded);
}

template <>
struct Step<float> {
  static constexpr int kNumbers = simd::Vec::kLanes;
  simd::Vec at;

  TANDEM_INLINE static Step load(const float* p) { return {simd::load(p)}; }
  TANDEM_INLINE static Step load_n(const float* p, int n) { return {simd::load_n(p, n)}; }
  TANDEM_INLINE simd::Vec add(simd::Vec sum, const Step& x) const { return fma(at, x.at, sum); }
};

/// Columns of an output: sums of products with rows of W, one or two of them at once.
template <class T>
struct DownStep {
  static constexpr int kChannels = 1, kColumns = simd::Vec::kLanes;
  simd::Vec sum;

  TANDEM_INLINE static DownStep zero() { return {simd::zero()}; }
  TANDEM_INLINE static simd::Vec weights(const T* const* w, int64_t column, int lanes) {
    return lanes == kColumns ? simd::load(w[0] + column) : simd::load_n(w[0] + column, lanes);
  }
  TANDEM_INLINE void add(simd::Vec w, const float* y) { sum = fma(simd::set1(*y), w, sum); }
  TANDEM_INLINE void add_to(float* out, int lanes) const {
    if (lanes == kColumns)
      simd::store(out, simd::load(out) + sum);
    else
      simd::store_n(out, simd::load_n(out, lanes) + sum, lanes);
  }
};

#ifdef TANDEM_ISA_avx512_bf16

TANDEM_INLINE __m512bh pairs_of(__m512i x) { return reinterpret_cast<__m512bh>(x); }

template <>
struct Step<bf16> {
  static constexpr int kNumbers = 32;
  __m512i at;

  TANDEM_INLINE static Step load(const bf16* p) { return {_mm512_loadu_si512(p)}; }
  TANDEM_INLINE static Step load_n(const bf16* p, int n) {
    return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p)};
  }
  TANDEM_INLINE simd::Vec add(simd::Vec sum, const Step& x) const {
    return {_mm512_dpbf16_ps(sum.v, pairs_of(at), pairs_of(x.at))};
  }
};

/// Numbers of two rows alternate within each 16 bytes, so that an instruction takes both; their
/// sums stand in that order until they are added to the output.
template <>
struct DownStep<bf16> {
  static constexpr int kChannels = 2, kColumns = 32;
  struct Weights {
    __m512i low, high;
  };
  __m512 low, high;

  TANDEM_INLINE static DownStep zero() { return {_mm512_setzero_ps(), _mm512_setzero_ps()}; }
  TANDEM_INLINE static Weights weights(const bf16* const* w, int64_t column, int lanes) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << lanes) - 1);
    const __m512i a = _mm512_maskz_loadu_epi16(mask, w[0] + column);
    const __m512i b = _mm512_maskz_loadu_epi16(mask, w[1] + column);
    return {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
  }
  /// y: f32 that came from bf16.
  TANDEM_INLINE void add(const Weights& w, const float* y) {
    const uint32_t both = (__builtin_bit_cast(uint32_t, y[0]) >> 16) |
                          (__builtin_bit_cast(uint32_t, y[1]) & 0xffff0000u);
    const __m512bh factor = pairs_of(_mm512_set1_epi32(static_cast<int>(both)));
    low = _mm512_dpbf16_ps(low, pairs_of(w.low), factor);
    high = _mm512_dpbf16_ps(high, pairs_of(w.high), factor);
  }
  TANDEM_INLINE void add_to(float* out, int lanes) const {
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const simd::Vec sums[] = {{_mm512_permutex2var_ps(low, first, high)},
                              {_mm512_permutex2var_ps(low, second, high)}};
    for (int half = 0; half < 2; ++half) {
      const int n = lanes - 16 * half < 16 ? lanes - 16 * half : 16;
      if (n <= 0) return;
      float* const to = out + 16 * half;
      simd::store_n(to, simd::load_n(to, n) + sums[half], n);
    }
  }
};

#else

template <>
struct Step<bf16> {
  static constexpr int kNumbers = 2 * simd::Vec::kLanes;
  simd::Vec even, odd;

  TANDEM_INLINE static Step load(const bf16* p) {
    Step s;
    simd::load_even_odd(p, s.even, s.odd);
    return s;
  }
  TANDEM_INLINE static Step load_n(const bf16* p, int n) { return padded_step(p, n); }
  TANDEM_INLINE simd::Vec add(simd::Vec sum, const Step& x) const {
    return fma(odd, x.odd, fma(even, x.even, sum));
  }
};

#endif

}  // namespace
}  // namespace tandem
