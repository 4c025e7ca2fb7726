#pragma once
// Counting differing bits, for signature_scan.inl: one `Counts` type per ISA for as many keys as a
// Vec has lanes.
//
//   clear(a, n)         starts from n for each key
//   count(a, key, q)    takes off the bits in which one word of each key differs from the word q of
//                       a query; at most kCountedWords times between widen(a)
//   widen(a)            makes room for kCountedWords more
//   left(a)             what is left for each key, after widen
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

#if defined(TANDEM_ISA_avx512)
// VPOPCNTDQ is not among this file's flags: signature_scan.inl asks the CPU for it.
#define TANDEM_COUNT_BITS __attribute__((target("avx512vpopcntdq")))
constexpr int kCountedWords = 1 << 20;

struct Counts {
  __m512i left;
};
using Words = __m512i;

TANDEM_INLINE Words load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
TANDEM_INLINE void clear(Counts& a, int n) { a.left = _mm512_set1_epi32(n); }
TANDEM_COUNT_BITS TANDEM_INLINE void count(Counts& a, Words key, uint32_t q) {
  const __m512i query = _mm512_set1_epi32(static_cast<int>(q));
  a.left = _mm512_sub_epi32(a.left, _mm512_popcnt_epi32(_mm512_xor_si512(key, query)));
}
TANDEM_INLINE void widen(Counts&) {}
TANDEM_INLINE Vec left(const Counts& a) { return {_mm512_cvtepi32_ps(a.left)}; }

#elif defined(TANDEM_ISA_avx2)
#define TANDEM_COUNT_BITS
constexpr int kCountedWords = 31;  // of 8 bits a byte: at most 248 in a byte

struct Counts {
  __m256i bytes, left;
};
using Words = __m256i;

TANDEM_INLINE Words load_words(const uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
TANDEM_INLINE void clear(Counts& a, int n) {
  a.bytes = _mm256_setzero_si256();
  a.left = _mm256_set1_epi32(n);
}
TANDEM_INLINE void count(Counts& a, Words key, uint32_t q) {
  const __m256i of_nibble =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i x = _mm256_xor_si256(key, _mm256_set1_epi32(static_cast<int>(q)));
  const __m256i high = _mm256_and_si256(_mm256_srli_epi32(x, 4), low);
  const __m256i sum = _mm256_add_epi8(_mm256_shuffle_epi8(of_nibble, _mm256_and_si256(x, low)),
                                      _mm256_shuffle_epi8(of_nibble, high));
  a.bytes = _mm256_add_epi8(a.bytes, sum);
}
TANDEM_INLINE void widen(Counts& a) {
  const __m256i pairs = _mm256_maddubs_epi16(a.bytes, _mm256_set1_epi8(1));
  a.left = _mm256_add_epi32(a.left, _mm256_madd_epi16(pairs, _mm256_set1_epi16(-1)));
  a.bytes = _mm256_setzero_si256();
}
TANDEM_INLINE Vec left(const Counts& a) { return {_mm256_cvtepi32_ps(a.left)}; }

#else
#define TANDEM_COUNT_BITS
constexpr int kCountedWords = 1 << 20;

struct Counts {
  int left;
};
using Words = uint32_t;

TANDEM_INLINE Words load_words(const uint32_t* p) { return *p; }
TANDEM_INLINE void clear(Counts& a, int n) { a.left = n; }
TANDEM_INLINE void count(Counts& a, Words key, uint32_t q) {
  a.left -= __builtin_popcount(key ^ q);
}
TANDEM_INLINE void widen(Counts&) {}
TANDEM_INLINE Vec left(const Counts& a) { return {static_cast<float>(a.left)}; }
#endif

}  // namespace
}  // namespace tandem
