#pragma once
// Weighted sums of a page's values in vectors, for attend_coded.inl: tiles as coded_tiles.h has
// them.
#include "kernels/lowbit/coded_tiles.h"

namespace tandem::coded {
namespace {

/// Nibbles of a page's values, for each group and chunk those of one row after the other.
struct Tile {
  uint8_t* nibbles;
};

template <int kBits>
void join_values(const Tile& tile, const uint8_t* page, const CodedLayout& l, Ahead& ahead) {
  const int plane = l.plane(), n_chunks = chunks(l.d);
  uint8_t* to = tile.nibbles;
  for (int g = 0; g < kGroups; ++g) {
    ahead.ask(2);
    for (int u = 0; u < n_chunks; ++u) {
      const uint8_t* at = page + l.values() + 16 * u + g * kGroup * kBits * plane;
      Bytes planes[8], nibbles[8];
#pragma GCC unroll 8
      for (int b = 0; b < kBits; ++b)
        planes[b] = interleave_lanes(load_lanes(at + b * plane, kBits * plane));
      join_planes(planes, nibbles);
      if constexpr (kBits > 4) join_planes(planes + 4, nibbles + 4);
#pragma GCC unroll 8
      for (int i = 0; i < kBits; ++i, to += kBytes) store_bytes(to, nibbles[i]);
    }
  }
}

/// Weights of keys [k, k + kW) of a page: words; or bytes, the low ones of all before the high
/// ones.
template <int kBits>
TANDEM_INLINE void put_weights(int16_t* weights, int k, Vec x) {
#if defined(TANDEM_ISA_avx512_bf16)
  if constexpr (kBits == 4) {
    auto* to = reinterpret_cast<uint8_t*>(weights) + k;
    const __m512i whole = _mm512_cvtps_epi32(x.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(whole));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kPageTokens),
                     _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
    return;
  }
#endif
  store_words(weights + k, x);
}

/// sums = alpha sums + factor (weights . numbers) for kQueries queries.
/// shapes   sums [vectors][kW] and weights [64] of a query, sums_step and 64 to the next one's
template <int kBits, int kQueries>
void add_values(float* sums, int sums_step, const Tile& tile, const CodedLayout& l,
                const int16_t* weights, const float* alpha, const float* factor, Ahead& ahead) {
  using Numbers = ValueNumbers<kBits>;
  constexpr bool kAsBytes = Numbers::kVectors == 1;
  constexpr int kSums = kAsBytes ? 2 : 4;  // vectors of two r
  constexpr int kExact = kBits == 4 ? kGroups : kExactKeys / kGroup;
  const Numbers decode;
  const int n_chunks = chunks(l.d);
  for (int pair = 0; pair < 4 * n_chunks; ++pair) {
    const int u = pair / 4, i_nibble = pair % 4;
    for (int first = 0; first < kGroups; first += kExact) {
      Bytes whole[kQueries][4];
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) whole[i][j] = no_bytes();
      for (int g = first; g < first + kExact; ++g) {
        ahead.ask(1);
        const uint8_t* at = tile.nibbles + ((g * n_chunks + u) * kBits + i_nibble) * kBytes;
        Bytes nibbles[5], y[4];
        nibbles[0] = load_bytes(at);
        if constexpr (kBits > 4) nibbles[4] = load_bytes(at + 4 * kBytes);
        decode(y, nibbles, 0);
        decode(y + Numbers::kVectors, nibbles, 4);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i)
          if constexpr (kAsBytes) {
            const auto* w = reinterpret_cast<const uint8_t*>(weights + i * kPageTokens) + 4 * g;
            const Bytes low = Numbers::each_number(w), high = Numbers::each_number(w + kPageTokens);
            whole[i][0] = Numbers::dot_add_bytes(whole[i][0], low, y[0]);
            whole[i][1] = Numbers::dot_add_bytes(whole[i][1], low, y[1]);
            whole[i][2] = Numbers::dot_add_bytes(whole[i][2], high, y[0]);
            whole[i][3] = Numbers::dot_add_bytes(whole[i][3], high, y[1]);
          } else {
            const Bytes w = each_group(weights + i * kPageTokens + g * kGroup);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) whole[i][j] = dot_add(whole[i][j], y[j], w);
          }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const Vec a = set1(first == 0 ? alpha[i] : 1), f = set1(factor[i]);
        if constexpr (kAsBytes)
#pragma GCC unroll 2
          for (int j = 0; j < 2; ++j)
            whole[i][j] = Numbers::times_256_plus(whole[i][2 + j], whole[i][j]);
        float* sum = sums + i * sums_step + pair * kSums * kW;
#pragma GCC unroll 4
        for (int j = 0; j < kSums; ++j, sum += kW)
          store(sum, fma(to_floats(whole[i][j]), f, load(sum) * a));
      }
    }
  }
}

/// o = factor * sums, in the order of coordinates.
void put_sums(float* o, const float* sums, float factor, const CodedLayout& l) {
  const bool bytes = kByteDots && l.bits.v == 4;
  for (int c = 0; c < l.d; ++c) {
    const int pair = c / 128 * 4 + c % 4, high = c % 8 / 4, byte = c % 128 / 8;
    if (bytes) {
      o[c] = factor * sums[(2 * pair + high) * kW + byte];
      continue;
    }
    const int lane = byte / (16 / kGroup), at = byte % (16 / kGroup);
    const int half = at / (8 / kGroup), number = at % (8 / kGroup) * (kGroup / 2);
    const float* sum = sums + (4 * pair + 2 * high + half) * kW + lane * 4 + number;
    o[c] = factor * (kGroup == 4 ? sum[0] + sum[1] : sum[0]);
  }
}

}  // namespace
}  // namespace tandem::coded
