#pragma once
// Philox4x32-10 (base/rng.h) for many counters at once, for bodies (*.inl). Intrinsics, because
// GCC turns the 32 x 32 -> 64 bit products of a plain loop into 64-bit multiplications, which cost
// four times as much.
#include <immintrin.h>
#include <stdint.h>

namespace tandem {
namespace {

constexpr int kPhiloxLanes = 16;

struct PhiloxWords {
  uint32_t w[4][kPhiloxLanes];
};

// One register of 32-bit words. mul_hi_lo gives both halves of each word times m.
#if defined(TANDEM_ISA_avx512)
struct Words {
  static constexpr int kCount = 16;
  __m512i v;
};
inline Words broadcast(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline Words count_from(uint32_t x) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_add_epi32(broadcast(x).v, lane)};
}
inline Words xor3(Words a, Words b, Words c) {
  return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0x96)};
}
inline void store(uint32_t* p, Words a) { _mm512_storeu_si512(p, a.v); }
inline void mul_hi_lo(Words a, uint32_t m, Words& hi, Words& lo) {
  const __m512i even = _mm512_mul_epu32(a.v, broadcast(m).v);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), broadcast(m).v);
  hi.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  lo.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
#elif defined(TANDEM_ISA_avx2)
struct Words {
  static constexpr int kCount = 8;
  __m256i v;
};
inline Words broadcast(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x))}; }
inline Words count_from(uint32_t x) {
  return {_mm256_add_epi32(broadcast(x).v, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
inline Words xor3(Words a, Words b, Words c) {
  return {_mm256_xor_si256(_mm256_xor_si256(a.v, b.v), c.v)};
}
inline void store(uint32_t* p, Words a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
inline void mul_hi_lo(Words a, uint32_t m, Words& hi, Words& lo) {
  const __m256i even = _mm256_mul_epu32(a.v, broadcast(m).v);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), broadcast(m).v);
  hi.v = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  lo.v = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
#else
struct Words {
  static constexpr int kCount = 1;
  uint32_t v;
};
inline Words broadcast(uint32_t x) { return {x}; }
inline Words count_from(uint32_t x) { return {x}; }
inline Words xor3(Words a, Words b, Words c) { return {a.v ^ b.v ^ c.v}; }
inline void store(uint32_t* p, Words a) { *p = a.v; }
inline void mul_hi_lo(Words a, uint32_t m, Words& hi, Words& lo) {
  const uint64_t product = uint64_t{a.v} * m;
  hi.v = static_cast<uint32_t>(product >> 32);
  lo.v = static_cast<uint32_t>(product);
}
#endif

/// Words of the counters {first + lane, c1, c2, c3}; `first` does not wrap within the lanes.
inline void philox_lanes(PhiloxWords& out, uint64_t key, uint32_t first, uint32_t c1, uint32_t c2,
                         uint32_t c3) {
  for (int lane = 0; lane < kPhiloxLanes; lane += Words::kCount) {
    Words x0 = count_from(first + static_cast<uint32_t>(lane));
    Words x1 = broadcast(c1), x2 = broadcast(c2), x3 = broadcast(c3);
    uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      Words hi0, lo0, hi2, lo2;
      mul_hi_lo(x0, 0xD2511F53u, hi0, lo0);
      mul_hi_lo(x2, 0xCD9E8D57u, hi2, lo2);
      x0 = xor3(hi2, x1, broadcast(key0));
      x2 = xor3(hi0, x3, broadcast(key1));
      x1 = lo2;
      x3 = lo0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    store(out.w[0] + lane, x0);
    store(out.w[1] + lane, x1);
    store(out.w[2] + lane, x2);
    store(out.w[3] + lane, x3);
  }
}

}  // namespace
}  // namespace tandem
