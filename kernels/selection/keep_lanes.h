#pragma once
// Packing the kept lanes of a vector of ids, for select_top.inl. One `Ids` type per ISA, as many
// int32 as a Vec has lanes; memory is void so that it may belong to numbers of another type.
//
//   iota(first)            first, first + 1, ...
//   load_ids(p) store_ids(p, v)   unaligned
//   v + n                  to each
//   gather(x, v)           x[id] of each
//   at_least(a, b)         mask of the lanes with a >= b
//   pack(v, mask)          the lanes of the mask first, in order; the rest is anything
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

TANDEM_INLINE int count_set(uint32_t bits) {
  return Vec::kLanes == 1 ? static_cast<int>(bits) : __builtin_popcount(bits);
}
TANDEM_INLINE int count_set(Mask m) { return count_set(bits_of(m)); }

#if defined(TANDEM_ISA_avx512)
struct Ids {
  __m512i v;
};
TANDEM_INLINE Ids operator+(Ids a, int n) { return {_mm512_add_epi32(a.v, _mm512_set1_epi32(n))}; }
TANDEM_INLINE Ids iota(int first) {
  return Ids{_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)} + first;
}
TANDEM_INLINE Ids load_ids(const void* p) { return {_mm512_loadu_si512(p)}; }
TANDEM_INLINE void store_ids(void* p, Ids a) { _mm512_storeu_si512(p, a.v); }
TANDEM_INLINE Vec gather(const float* x, Ids a) { return {_mm512_i32gather_ps(a.v, x, 4)}; }
TANDEM_INLINE Mask at_least(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
TANDEM_INLINE Ids pack(Ids a, Mask m) { return {_mm512_maskz_compress_epi32(m.v, a.v)}; }

#elif defined(TANDEM_ISA_avx2)
struct Ids {
  __m256i v;
};
TANDEM_INLINE Ids operator+(Ids a, int n) { return {_mm256_add_epi32(a.v, _mm256_set1_epi32(n))}; }
TANDEM_INLINE Ids iota(int first) { return Ids{_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)} + first; }
TANDEM_INLINE Ids load_ids(const void* p) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(p))};
}
TANDEM_INLINE void store_ids(void* p, Ids a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a.v); }
TANDEM_INLINE Vec gather(const float* x, Ids a) { return {_mm256_i32gather_ps(x, a.v, 4)}; }

/// For each mask of eight bits the places of its set bits, one a byte, lowest first.
struct PackTable {
  uint64_t places[256];
};
constexpr PackTable make_pack_table() {
  PackTable t{};
  for (int bits = 0; bits < 256; ++bits)
    for (int lane = 0, at = 0; lane < 8; ++lane)
      if ((bits >> lane) & 1) t.places[bits] |= static_cast<uint64_t>(lane) << (8 * at++);
  return t;
}
constexpr PackTable kPackTable = make_pack_table();

TANDEM_INLINE Mask at_least(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
TANDEM_INLINE Ids pack(Ids a, Mask m) {
  const uint64_t* places = kPackTable.places + bits_of(m);
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(places));
  return {_mm256_permutevar8x32_epi32(a.v, _mm256_cvtepu8_epi32(bytes))};
}

#else
struct Ids {
  int32_t v;
};
TANDEM_INLINE Ids operator+(Ids a, int n) { return {a.v + n}; }
TANDEM_INLINE Ids iota(int first) { return {first}; }
TANDEM_INLINE Ids load_ids(const void* p) {
  Ids a;
  memcpy(&a.v, p, sizeof a.v);
  return a;
}
TANDEM_INLINE void store_ids(void* p, Ids a) { memcpy(p, &a.v, sizeof a.v); }
TANDEM_INLINE Vec gather(const float* x, Ids a) { return {x[a.v]}; }
TANDEM_INLINE Mask at_least(Vec a, Vec b) { return {a.v >= b.v}; }
TANDEM_INLINE Ids pack(Ids a, Mask) { return a; }
#endif

}  // namespace
}  // namespace tandem
