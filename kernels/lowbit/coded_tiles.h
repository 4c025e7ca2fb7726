#pragma once
// Decoded pages and products with them in vectors, for attend_coded.inl. A tile holds the numbers
// of 64 rows as 16-bit words: for each group of kGroup rows and each chunk of 128 coordinates 16
// vectors. Vector 2 r + h has coordinates 8 b + r of a half of the bytes b of a plane: of keys,
// lane k of 16 bytes is row k; of values, the words of kGroup rows stand together for each
// coordinate.
#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_bytes.h"
#include "kernels/lowbit/coded_lanes.h"
#include "kernels/lowbit/coded_pages.h"

namespace tandem {
namespace {

#ifdef TANDEM_ISA_avx2
constexpr int kQueriesAtOnce = 2, kSumsAtOnce = 4;
#else
constexpr int kQueriesAtOnce = 4, kSumsAtOnce = 8;
#endif
constexpr int kValueQueries = 2;
constexpr int kGroups = kPageTokens / kGroup;
constexpr int kWords = 16;  // vectors of a chunk

struct Tile {
  int16_t* numbers;
  int d;

  int chunks() const { return (d + 127) / 128; }
  /// Vectors of a group.
  int vectors() const { return kWords * chunks(); }
  int16_t* group(int g) const { return numbers + g * vectors() * (kBytes / 2); }
};

constexpr int query_words(int d) { return (d + 127) / 128 * kWords * (kBytes / 2); }

void arrange_query(int16_t* to, const int16_t* numbers, const CodedLayout& l) {
  __builtin_memset(to, 0, sizeof(int16_t) * static_cast<size_t>(query_words(l.d)));
  for (int c = 0; c < l.d; ++c) {
    const int vector = c / 128 * kWords + 2 * (c % 8) + c % 128 / 64, word = c % 64 / 8;
    for (int lane = 0; lane < kGroup; ++lane) to[(vector * kGroup + lane) * 8 + word] = numbers[c];
  }
}

/// Numbers of 16 codes of four bits, sign and cell, as bytes of tables.
struct CellTables {
  Bytes low, high;  // of signed words

  template <class Number>
  explicit CellTables(const Number& number) {
    alignas(16) uint8_t lows[16], highs[16];
    for (int code = 0; code < 16; ++code) {
      const auto word = static_cast<uint16_t>(number(code));
      lows[code] = static_cast<uint8_t>(word);
      highs[code] = static_cast<uint8_t>(word >> 8);
    }
    low = each_lane(load_lane(lows));
    high = each_lane(load_lane(highs));
  }
};

constexpr int number_of_nibble(int code) {
  return code < kCells ? kCellNumber[code] : -kCellNumber[code - kCells];
}

/// Four planes, the most significant first, become nibbles: those of coordinates 8 b + r in the low
/// half, those of 8 b + r + 4 in the high half of byte b of nibbles[r].
TANDEM_INLINE void join_planes(const Bytes (&planes)[4], Bytes (&nibbles)[4]) {
  const Bytes ones = each_byte(0x55), twos = each_byte(0x33);
  const Bytes low_even = choose(ones, planes[3], left<1>(planes[2]));
  const Bytes low_odd = choose(ones, right<1>(planes[3]), planes[2]);
  const Bytes high_even = choose(ones, planes[1], left<1>(planes[0]));
  const Bytes high_odd = choose(ones, right<1>(planes[1]), planes[0]);
  nibbles[0] = choose(twos, low_even, left<2>(high_even));
  nibbles[1] = choose(twos, low_odd, left<2>(high_odd));
  nibbles[2] = choose(twos, right<2>(low_even), high_even);
  nibbles[3] = choose(twos, right<2>(low_odd), high_odd);
}
TANDEM_INLINE Bytes nibble(const Bytes (&nibbles)[4], int r) {
  const Bytes low = each_byte(15);
  return r < 4 ? both(nibbles[r], low) : both(right<4>(nibbles[r - 4]), low);
}

/// Words of codes of four bits.
struct DecodeCells {
  CellTables numbers{[](int code) { return number_of_nibble(code); }};

  TANDEM_INLINE void operator()(int16_t* to, const Bytes (&planes)[8]) const {
    Bytes nibbles[4];
    join_planes({planes[0], planes[1], planes[2], planes[3]}, nibbles);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const Bytes code = nibble(nibbles, r);
      const Bytes low = look_up(numbers.low, code), high = look_up(numbers.high, code);
      store_bytes(to + r * kBytes, low_pairs(low, high));
      store_bytes(to + r * kBytes + kBytes / 2, high_pairs(low, high));
    }
  }
};

/// Words of codes of eight bits, and of six with two planes of zeros: the odd number of a part, in
/// 32nds, times the width of the cell, from its beginning on.
struct DecodeParts {
  CellTables begin{[](int code) { return kCellEnd[code % kCells]; }};
  // 2^3 times: the product's upper half is then that of 2^5.
  CellTables width{
      [](int code) { return 8 * (kCellEnd[code % kCells + 1] - kCellEnd[code % kCells]); }};
  CellTables sign{[](int code) { return code < kCells ? 0 : -1; }};
  CellTables odd;

  explicit DecodeParts(int bits)
      : odd([=](int part) { return bits == 8 ? 2 * part + 1 : part / 4 * 8 + 4; }) {}

  TANDEM_INLINE void operator()(int16_t* to, const Bytes (&planes)[8]) const {
    Bytes cells[4], parts[4];
    join_planes({planes[0], planes[1], planes[2], planes[3]}, cells);
    join_planes({planes[4], planes[5], planes[6], planes[7]}, parts);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const Bytes cell = nibble(cells, r), part = look_up(odd.low, nibble(parts, r));
      const Bytes from[2] = {look_up(begin.low, cell), look_up(begin.high, cell)};
      const Bytes wide[2] = {look_up(width.low, cell), look_up(width.high, cell)};
      const Bytes minus = look_up(sign.low, cell);
      store_bytes(to + r * kBytes, number(low_pairs(from[0], from[1]), low_pairs(wide[0], wide[1]),
                                          low_pairs(no_bytes(), part), low_pairs(minus, minus)));
      store_bytes(to + r * kBytes + kBytes / 2,
                  number(high_pairs(from[0], from[1]), high_pairs(wide[0], wide[1]),
                         high_pairs(no_bytes(), part), high_pairs(minus, minus)));
    }
  }

 private:
  static TANDEM_INLINE Bytes number(Bytes from, Bytes wide, Bytes part, Bytes minus) {
#ifdef TANDEM_ISA_avx2
    const Bytes y = _mm256_add_epi16(from, _mm256_mulhi_epu16(wide, part));
    return _mm256_sub_epi16(_mm256_xor_si256(y, minus), minus);
#else
    const Bytes y = _mm512_add_epi16(from, _mm512_mulhi_epu16(wide, part));
    return _mm512_sub_epi16(_mm512_xor_si512(y, minus), minus);
#endif
  }
};

template <int kBits>
auto decoder() {
  if constexpr (kBits == 4)
    return DecodeCells();
  else
    return DecodeParts(kBits);
}

/// 16 bytes of each row of a group may be past a plane's end, never past the page's.
template <int kBits>
void decode_keys(const Tile& tile, const uint8_t* page, const CodedLayout& l) {
  const auto decode = decoder<kBits>();
  const int plane = l.plane();
  for (int g = 0; g < kGroups; ++g)
    for (int u = 0; u < tile.chunks(); ++u) {
      const uint8_t* at = page + 16 * u;
      const int row = g * kGroup;
      Bytes planes[8];
      planes[0] = load_lanes(at + l.signs() + row * plane, plane);
#pragma GCC unroll 8
      for (int b = 1; b < 8; ++b)
        planes[b] = b < 4       ? load_lanes(at + l.cells() + (3 * row + b - 1) * plane, 3 * plane)
                    : b < kBits ? load_lanes(at + l.parts() + ((kBits - 4) * row + b - 4) * plane,
                                             (kBits - 4) * plane)
                                : no_bytes();
      decode(tile.group(g) + u * kWords * (kBytes / 2), planes);
    }
}
inline void decode_keys(const Tile& tile, const uint8_t* page, const CodedLayout& l) {
  if (l.bits.k == 4) return decode_keys<4>(tile, page, l);
  if (l.bits.k == 6) return decode_keys<6>(tile, page, l);
  decode_keys<8>(tile, page, l);
}

template <int kBits>
void decode_values(const Tile& tile, const uint8_t* page, const CodedLayout& l) {
  const auto decode = decoder<kBits>();
  const int plane = l.plane();
  for (int g = 0; g < kGroups; ++g)
    for (int u = 0; u < tile.chunks(); ++u) {
      const uint8_t* at = page + l.values() + 16 * u + g * kGroup * kBits * plane;
      Bytes planes[8];
#pragma GCC unroll 8
      for (int b = 0; b < 8; ++b)
        planes[b] =
            b < kBits ? interleave_lanes(load_lanes(at + b * plane, kBits * plane)) : no_bytes();
      decode(tile.group(g) + u * kWords * (kBytes / 2), planes);
    }
}
inline void decode_values(const Tile& tile, const uint8_t* page, const CodedLayout& l) {
  if (l.bits.v == 4) return decode_values<4>(tile, page, l);
  decode_values<8>(tile, page, l);
}

/// n . y of keys [key, key + kW) of the tile.
template <int kQueries>
TANDEM_INLINE void key_sums(Vec (&sums)[kQueries], const Tile& tile, const int16_t* queries,
                            int step, int key) {
  Bytes whole[kQueries][4];
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i)
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) whole[i][g] = no_bytes();
  const int n = tile.vectors(), group = n * (kBytes / 2);
  const int16_t* keys = tile.group(key / kGroup);
  for (int t = 0; t < n; ++t) {
    Bytes numbers[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) numbers[g] = load_bytes(keys + g * group + t * (kBytes / 2));
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      const Bytes q = load_bytes(queries + i * step + t * (kBytes / 2));
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) whole[i][g] = dot_add(whole[i][g], numbers[g], q);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) sums[i] = to_floats(sums_of_lanes(whole[i]));
}

/// sums = alpha sums + factor (weights . numbers) for kQueries queries, products summed exactly
/// over `exact` keys.
/// shapes   sums [vectors][kW] and weights [64] of a query, sums_step and 64 to the next one's
template <int kQueries>
void add_values(float* sums, int sums_step, const Tile& tile, const int16_t* weights,
                const float* alpha, const float* factor, int exact) {
  const int n = tile.vectors(), groups = exact / kGroup;
  for (int t = 0; t < n; t += kSumsAtOnce)
    for (int first = 0; first < kGroups; first += groups) {
      Bytes whole[kQueries][kSumsAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < kSumsAtOnce; ++j) whole[i][j] = no_bytes();
      for (int g = first; g < first + groups; ++g) {
        const int16_t* numbers = tile.group(g) + t * (kBytes / 2);
        Bytes w[kQueries];
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i)
          w[i] = each_group(weights + i * kPageTokens + g * kGroup);
#pragma GCC unroll 8
        for (int j = 0; j < kSumsAtOnce; ++j) {
          const Bytes y = load_bytes(numbers + j * (kBytes / 2));
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i) whole[i][j] = dot_add(whole[i][j], y, w[i]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const Vec a = set1(first == 0 ? alpha[i] : 1), f = set1(factor[i]);
#pragma GCC unroll 8
        for (int j = 0; j < kSumsAtOnce; ++j) {
          float* sum = sums + i * sums_step + (t + j) * kW;
          store(sum, fma(to_floats(whole[i][j]), f, load(sum) * a));
        }
      }
    }
}

/// o = factor * sums, in the order of coordinates.
inline void put_sums(float* o, const float* sums, float factor, const CodedLayout& l) {
  for (int c = 0; c < l.d; ++c) {
    const int byte = c % 128 / 8, lane = byte / (16 / kGroup), at = byte % (16 / kGroup);
    const int half = at / (8 / kGroup), number = at % (8 / kGroup) * (kGroup / 2);
    const float* sum = sums + (c / 128 * kWords + 2 * (c % 8) + half) * kW + lane * 4 + number;
    o[c] = factor * (kGroup == 4 ? sum[0] + sum[1] : sum[0]);
  }
}

}  // namespace
}  // namespace tandem
