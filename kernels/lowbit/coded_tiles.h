#pragma once
// Products with a page's keys in vectors, for attend_coded.inl. Rows are decoded in groups, between
// the products, and again for further queries: decoding uses other ports of a processor. A chunk of
// 128 coordinates is 16 bytes of a plane. Four planes of a group become nibbles. Byte b of
// nibbles[r] has coordinate 8 b + r in its low half, and 8 b + r + 4 in its high half. Words of
// coordinates r are two vectors, of half of the bytes b each. In tiles of keys, lane k of 16 bytes
// is row k. In tiles of values, rows of a group stand together for each coordinate.
#include "kernels/lowbit/code_levels.h"
#include "kernels/lowbit/coded_bytes.h"
#include "kernels/lowbit/coded_lanes.h"
#include "kernels/lowbit/coded_pages.h"

namespace tandem::coded {
namespace {

constexpr int kQueriesAtOnce = kGroup;
constexpr int kGroups = kPageTokens / kGroup;
constexpr int kVectorWords = kBytes / 2;  // words of a vector
constexpr int kQueryVectors = 16;         // for each chunk
#if defined(TANDEM_ISA_avx512_bf16)
constexpr bool kByteDots = true;
#else
constexpr bool kByteDots = false;
#endif

constexpr int chunks(int d) { return (d + 127) / 128; }
/// Words of a query as key_sums reads it: two vectors for each chunk and r, then a number.
constexpr int query_words(int d) { return (chunks(d) * kQueryVectors + 1) * kVectorWords; }

void arrange_query(int16_t* to, const int16_t* numbers, const CodedLayout& l) {
  __builtin_memset(to, 0, sizeof(int16_t) * static_cast<size_t>(query_words(l.d)));
  const bool bytes = kByteDots && l.bits.k == 4;
  uint32_t sum = 0;
  for (int c = 0; c < l.d; ++c) {
    const int vector = c / 128 * kQueryVectors + 2 * (c % 8), byte = c % 128 / 8;
    const int low = static_cast<int8_t>(numbers[c]), high = (numbers[c] - low) / 256;
    sum += static_cast<uint32_t>(numbers[c]);
    for (int lane = 0; lane < kGroup; ++lane)
      if (bytes) {
        auto* at = reinterpret_cast<int8_t*>(to + vector * kVectorWords) + lane * 16 + byte;
        at[0] = static_cast<int8_t>(high);
        at[kBytes] = static_cast<int8_t>(low);
      } else {
        to[(vector + byte / 8) * kVectorWords + lane * 8 + byte % 8] = numbers[c];
      }
  }
  // Bytes of keys are 128 more than their numbers.
  const uint32_t bias = bytes ? 0u - 128u * sum : 0u;
  __builtin_memcpy(to + query_words(l.d) - kVectorWords, &bias, sizeof bias);
}

/// A page that is read next, asked for a few lines at a time.
struct Ahead {
  const uint8_t *at, *end;

  Ahead(const uint8_t* page, const CodedLayout& l)
      : at(page), end(page == nullptr ? nullptr : page + l.page_bytes()) {}
  TANDEM_INLINE void ask(int lines) {
    for (int i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at);
  }
};

/// Sixteen words by sign and cell or by part, as bytes that stand in every lane.
struct alignas(16) Table {
  uint8_t low[16], high[16];

  template <class Number>
  constexpr explicit Table(const Number& number) : low{}, high{} {
    for (int code = 0; code < 16; ++code) {
      low[code] = static_cast<uint8_t>(number(code));
      high[code] = static_cast<uint8_t>(number(code) >> 8);
    }
  }
};
struct LaneTable {
  Bytes low, high;
  TANDEM_INLINE explicit LaneTable(const Table& t)
      : low(each_lane(load_lane(t.low))), high(each_lane(load_lane(t.high))) {}
};

constexpr int number_of_cell(int code) {
  return code < kCells ? kCellNumber[code] : -kCellNumber[code - kCells];
}

/// Planes, the most significant first.
TANDEM_INLINE void join_planes(const Bytes* planes, Bytes* nibbles) {
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
TANDEM_INLINE Bytes half_of(Bytes nibbles, bool high) {
  return both(high ? right<4>(nibbles) : nibbles, each_byte(15));
}

#ifdef TANDEM_ISA_avx512_bf16
/// Numbers of codes of four bits in bytes, plus kBias.
template <int kBias>
struct BytesOfCells {
  static constexpr int kNibbles = 4, kVectors = 1;  // for each r
  static constexpr Table kNumbers{[](int code) { return kBias + number_of_cell(code); }};
  LaneTable numbers{kNumbers};

  TANDEM_INLINE void operator()(Bytes* y, const Bytes* nibbles, int r) const {
    y[0] = look_up(numbers.low, half_of(nibbles[r % 4], r > 3));
  }
  /// Numbers plus the sums of four products each, of unsigned and of signed bytes.
  static TANDEM_INLINE Bytes dot_add_bytes(Bytes sum, Bytes a, Bytes b) {
    return _mm512_dpbusd_epi32(sum, a, b);
  }
  static TANDEM_INLINE Bytes each_number(const void* p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
  }
  static TANDEM_INLINE Bytes times_256_plus(Bytes a, Bytes b) {
    return _mm512_add_epi32(_mm512_slli_epi32(a, 8), b);
  }
};
#endif

/// Numbers of codes of four bits in words.
struct WordsOfCells {
  static constexpr int kNibbles = 4, kVectors = 2;
  static constexpr Table kNumbers{[](int code) { return number_of_cell(code); }};
  LaneTable numbers{kNumbers};

  TANDEM_INLINE void operator()(Bytes* y, const Bytes* nibbles, int r) const {
    const Bytes code = half_of(nibbles[r % 4], r > 3);
    const Bytes low = look_up(numbers.low, code), high = look_up(numbers.high, code);
    y[0] = low_pairs(low, high);
    y[1] = high_pairs(low, high);
  }
};

/// Numbers of codes of eight bits, and of six with two planes of zeros.
template <int kBits>
struct WordsOfParts {
  static constexpr int kNibbles = 8, kVectors = 2;

#ifdef TANDEM_ISA_avx2
  // The odd number of a part, in 32nds, times the width of the cell, from its beginning on.
  static constexpr Table kBegin{[](int code) { return kCellEnd[code % kCells]; }};
  // 2^3 times: the product's upper half is then that of 2^5.
  static constexpr Table kWidth{
      [](int code) { return 8 * (kCellEnd[code % kCells + 1] - kCellEnd[code % kCells]); }};
  static constexpr Table kSign{[](int code) { return code < kCells ? 0 : -1; }};
  static constexpr Table kOdd{
      [](int part) { return kBits == 8 ? 2 * part + 1 : part / 4 * 8 + 4; }};
  LaneTable begin{kBegin}, width{kWidth}, sign{kSign}, odd{kOdd};

  TANDEM_INLINE void operator()(Bytes* y, const Bytes* nibbles, int r) const {
    const Bytes cell = half_of(nibbles[r % 4], r > 3);
    const Bytes part = look_up(odd.low, half_of(nibbles[4 + r % 4], r > 3));
    const Bytes from[2] = {look_up(begin.low, cell), look_up(begin.high, cell)};
    const Bytes wide[2] = {look_up(width.low, cell), look_up(width.high, cell)};
    const Bytes minus = look_up(sign.low, cell);
    y[0] = signed_sum(low_pairs(from[0], from[1]), low_pairs(wide[0], wide[1]),
                      low_pairs(no_bytes(), part), low_pairs(minus, minus));
    y[1] = signed_sum(high_pairs(from[0], from[1]), high_pairs(wide[0], wide[1]),
                      high_pairs(no_bytes(), part), high_pairs(minus, minus));
  }
#else
  Bytes numbers[4];  // each has 32 codes without sign

  struct alignas(64) Words {
    int16_t at[128];
    constexpr Words() : at{} {
      for (int code = 0; code < 128; ++code)
        at[code] = static_cast<int16_t>(code_number(kBits, code / 16, code % 16 >> (8 - kBits)));
    }
  };
  static constexpr Words kNumbers{};

  TANDEM_INLINE WordsOfParts() {
    for (int i = 0; i < 4; ++i) numbers[i] = load_bytes(kNumbers.at + 32 * i);
  }
  TANDEM_INLINE Bytes word_of(Bytes twice) const {
    const Bytes low = _mm512_permutex2var_epi16(numbers[0], twice, numbers[1]);
    const Bytes high = _mm512_permutex2var_epi16(numbers[2], twice, numbers[3]);
    const __mmask32 is_high = _mm512_test_epi16_mask(twice, _mm512_set1_epi16(0x4000));
    const Bytes y = _mm512_mask_blend_epi16(is_high, low, high);
    return _mm512_mask_sub_epi16(y, _mm512_movepi16_mask(twice), no_bytes(), y);
  }
  TANDEM_INLINE void operator()(Bytes* y, const Bytes* nibbles, int r) const {
    const Bytes cell = nibbles[r % 4], part = nibbles[4 + r % 4], cells = each_byte(0xf0);
    const Bytes code =
        r > 3 ? choose(cells, cell, right<4>(part)) : choose(cells, left<4>(cell), part);
    y[0] = word_of(low_pairs(code, code));
    y[1] = word_of(high_pairs(code, code));
  }
#endif
};

template <int kBits, int kBias>
struct NumbersOf {
  using Type = WordsOfParts<kBits>;
};
template <int kBias>
struct NumbersOf<4, kBias> {
#ifdef TANDEM_ISA_avx512_bf16
  using Type = BytesOfCells<kBias>;
#else
  using Type = WordsOfCells;
#endif
};
template <int kBits>
using KeyNumbers = typename NumbersOf<kBits, 128>::Type;
template <int kBits>
using ValueNumbers = typename NumbersOf<kBits, 0>::Type;

/// Nibbles of a group's keys. 16 bytes of a row may be past a plane's end, never past the page's.
template <int kBits>
TANDEM_INLINE void load_keys(Bytes* nibbles, const uint8_t* page, const CodedLayout& l, int row,
                             int chunk) {
  const int plane = l.plane();
  const uint8_t* at = page + 16 * chunk;
  Bytes planes[8];
  planes[0] = load_lanes(at + l.signs() + row * plane, plane);
#pragma GCC unroll 8
  for (int b = 1; b < 8; ++b)
    planes[b] = b < 4       ? load_lanes(at + l.cells() + (3 * row + b - 1) * plane, 3 * plane)
                : b < kBits ? load_lanes(at + l.parts() + ((kBits - 4) * row + b - 4) * plane,
                                         (kBits - 4) * plane)
                            : no_bytes();
  join_planes(planes, nibbles);
  if constexpr (kBits > 4) join_planes(planes + 4, nibbles + 4);
}

/// n . y of a page's keys by kQueries queries. Nibbles are made one group before their products.
/// shapes   sums [kQueries, 64]
template <int kBits, int kQueries>
TANDEM_INLINE void key_sums(float* sums, const KeyNumbers<kBits>& decode, const uint8_t* page,
                            const CodedLayout& l, const int16_t* queries, Ahead& ahead) {
  using Numbers = KeyNumbers<kBits>;
  constexpr bool kAsBytes = Numbers::kVectors == 1;
  const int step = query_words(l.d), n_chunks = chunks(l.d);
  const int lines = static_cast<int>(l.page_bytes()) / (64 * kGroups * 3 / 2) + 1;
  Bytes next[Numbers::kNibbles];
  load_keys<kBits>(next, page, l, 0, 0);
  for (int key = 0; key < kPageTokens; key += kW) {
    Bytes whole[kQueries][4];
    for (int g = 0; g < 4; ++g) {
      ahead.ask(lines);
      const int row = key + g * kGroup;
      Bytes part[kQueries][2];
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) part[i][0] = part[i][1] = no_bytes();
      for (int u = 0; u < n_chunks; ++u) {
        Bytes nibbles[Numbers::kNibbles];
#pragma GCC unroll 8
        for (int i = 0; i < Numbers::kNibbles; ++i) nibbles[i] = next[i];
        const bool same = u + 1 < n_chunks;
        load_keys<kBits>(next, page, l, same ? row : (row + kGroup) % kPageTokens,
                         same ? u + 1 : 0);
        const int16_t* q = queries + u * kQueryVectors * kVectorWords;
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
          Bytes y[2];
          decode(y, nibbles, r);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i)
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
              const Bytes numbers = load_bytes(q + i * step + (2 * r + h) * kVectorWords);
              if constexpr (kAsBytes)
                part[i][h] = Numbers::dot_add_bytes(part[i][h], y[0], numbers);
              else
                part[i][h] = dot_add(part[i][h], y[h], numbers);
            }
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i)
        if constexpr (kAsBytes)
          whole[i][g] = Numbers::times_256_plus(part[i][0], part[i][1]);
        else
          whole[i][g] = add_numbers(part[i][0], part[i][1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      Bytes sum = sums_of_lanes(whole[i]);
      if constexpr (kAsBytes)
        sum = add_numbers(sum, Numbers::each_number(queries + i * step + step - kVectorWords));
      store(sums + i * kPageTokens + key, to_floats(sum));
    }
  }
}

}  // namespace
}  // namespace tandem::coded
