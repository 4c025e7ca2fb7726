#pragma once
// Decoded pages and products with them, without vectors: for attend_coded.inl.
#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_lanes.h"
#include "kernels/lowbit/coded_pages.h"

namespace tandem::coded {
namespace {

constexpr int kQueriesAtOnce = 1;

constexpr int query_words(int d) { return d; }

inline void arrange_query(int16_t* to, const int16_t* numbers, const CodedLayout& l) {
  __builtin_memcpy(to, numbers, sizeof(int16_t) * static_cast<size_t>(l.d));
}

/// The processor asks for the next page.
struct Ahead {
  Ahead(const uint8_t*, const CodedLayout&) {}
};

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

template <int kBits>
struct KeyNumbers {};

/// n . y of a page's keys.
template <int kBits, int kQueries>
void key_sums(float* sums, const KeyNumbers<kBits>&, const uint8_t* page, const CodedLayout& l,
              const int16_t* query, Ahead&) {
  static_assert(kQueries == 1);
  const int plane = l.plane();
  for (int key = 0; key < kPageTokens; ++key) {
    int64_t sum = 0;  // rows that are not seen may hold anything
    for (int c = 0; c < l.d; ++c)
      sum +=
          query[c] * number_at(page + l.signs() + key * plane, page + l.cells() + 3 * key * plane,
                               page + l.parts() + (kBits - 4) * key * plane, kBits, plane, c);
    sums[key] = static_cast<float>(sum);
  }
}

/// A page's values as they are.
struct Tile {
  uint8_t* memory;
  const uint8_t* values = nullptr;
};

template <int kBits>
void join_values(Tile& tile, const uint8_t* page, const CodedLayout& l, Ahead&) {
  tile.values = page + l.values();
}

template <int kBits>
TANDEM_INLINE void put_weights(int16_t* weights, int k, Vec x) {
  store_words(weights + k, x);
}

/// sums = alpha sums + factor (weights . numbers).
template <int kBits, int kQueries>
void add_values(float* sums, int, const Tile& tile, const CodedLayout& l, const int16_t* weights,
                const float* alpha, const float* factor, Ahead&) {
  static_assert(kQueries == 1);
  constexpr int kExact = kBits == 4 ? kPageTokens : kExactKeys;
  const int plane = l.plane();
  int32_t whole[kMostCodedDims];
  for (int c = 0; c < l.d; ++c) sums[c] *= *alpha;
  for (int key = 0; key < kPageTokens; ++key) {
    if (key % kExact == 0) __builtin_memset(whole, 0, sizeof whole);
    const uint8_t* at = tile.values + kBits * key * plane;
    for (int c = 0; c < l.d; ++c)
      whole[c] += weights[key] * number_at(at, at + plane, at + 4 * plane, kBits, plane, c);
    if (key % kExact == kExact - 1)
      for (int c = 0; c < l.d; ++c) sums[c] += *factor * static_cast<float>(whole[c]);
  }
}

/// o = factor * sums.
inline void put_sums(float* o, const float* sums, float factor, const CodedLayout& l) {
  for (int c = 0; c < l.d; ++c) o[c] = factor * sums[c];
}

}  // namespace
}  // namespace tandem::coded
