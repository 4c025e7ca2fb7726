#pragma once
// Decoded pages and products with them, without vectors: for attend_coded.inl.
#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_lanes.h"
#include "kernels/lowbit/coded_pages.h"

namespace tandem {
namespace {

constexpr int kQueriesAtOnce = 1, kValueQueries = 1;

/// Numbers of 64 rows, [64, d].
struct Tile {
  int16_t* numbers;
  int d;
};

/// A query as key_sums reads it.
constexpr int query_words(int d) { return d; }
inline void arrange_query(int16_t* to, const int16_t* numbers, const CodedLayout& l) {
  __builtin_memcpy(to, numbers, sizeof(int16_t) * static_cast<size_t>(l.d));
}

/// The number of coordinate c by a row's planes: that of the sign, three of its cell, others.
inline int16_t number_at(const uint8_t* sign, const uint8_t* cell, const uint8_t* parts, int bits,
                         int plane, int c) {
  const auto bit = [&](const uint8_t* at) { return at[c / 8] >> (c % 8) & 1; };
  const int j = 4 * bit(cell) + 2 * bit(cell + plane) + bit(cell + 2 * plane);
  int part = 0;
  for (int b = 0; b < bits - 4; ++b) part = 2 * part + bit(parts + b * plane);
  const int number = code_number(bits, j, part);
  return static_cast<int16_t>(bit(sign) != 0 ? -number : number);
}

void decode_keys(const Tile& tile, const uint8_t* page, const CodedLayout& l) {
  const int plane = l.plane(), bits = l.bits.k;
  for (int row = 0; row < kPageTokens; ++row)
    for (int c = 0; c < l.d; ++c)
      tile.numbers[row * l.d + c] =
          number_at(page + l.signs() + row * plane, page + l.cells() + 3 * row * plane,
                    page + l.parts() + (bits - 4) * row * plane, bits, plane, c);
}

void decode_values(const Tile& tile, const uint8_t* page, const CodedLayout& l) {
  const int plane = l.plane(), bits = l.bits.v;
  for (int row = 0; row < kPageTokens; ++row) {
    const uint8_t* at = page + l.values() + bits * row * plane;
    for (int c = 0; c < l.d; ++c)
      tile.numbers[row * l.d + c] = number_at(at, at + plane, at + 4 * plane, bits, plane, c);
  }
}

/// n . y of keys [key, key + kW) of the tile.
template <int kQueries>
TANDEM_INLINE void key_sums(Vec (&sums)[kQueries], const Tile& tile, const int16_t* query, int,
                            int key) {
  static_assert(kQueries == 1 && kW == 1);
  int64_t sum = 0;  // rows that are not seen may hold anything
  for (int c = 0; c < tile.d; ++c) sum += tile.numbers[key * tile.d + c] * query[c];
  sums[0] = set1(static_cast<float>(sum));
}

/// sums = alpha sums + factor (weights . numbers), products summed exactly over `exact` keys.
template <int kQueries>
void add_values(float* sums, int, const Tile& tile, const int16_t* weights, const float* alpha,
                const float* factor, int exact) {
  static_assert(kQueries == 1);
  int32_t whole[kMostCodedDims];
  for (int c = 0; c < tile.d; ++c) sums[c] *= *alpha;
  for (int key = 0; key < kPageTokens; ++key) {
    if (key % exact == 0) __builtin_memset(whole, 0, sizeof whole);
    for (int c = 0; c < tile.d; ++c) whole[c] += weights[key] * tile.numbers[key * tile.d + c];
    if (key % exact == exact - 1)
      for (int c = 0; c < tile.d; ++c) sums[c] += *factor * static_cast<float>(whole[c]);
  }
}

/// o = factor * sums.
inline void put_sums(float* o, const float* sums, float factor, const CodedLayout& l) {
  for (int c = 0; c < l.d; ++c) o[c] = factor * sums[c];
}

}  // namespace
}  // namespace tandem
