#include "base/crc32.h"

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstring>

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int kBytes = 8;  // that a step takes in, one table each
using Tables = std::array<std::array<uint32_t, 256>, kBytes>;

/// Entry [k][b]: what byte b amounts to that k bytes follow.
constexpr Tables make_tables() {
  constexpr uint32_t kPolynomial = 0xedb88320;  // bits reversed
  Tables t{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t x = b;
    for (int bit = 0; bit < 8; ++bit) x = (x >> 1) ^ ((x & 1) != 0 ? kPolynomial : 0);
    t[0][b] = x;
  }
  for (size_t k = 1; k < kBytes; ++k)
    for (uint32_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xff];
  return t;
}

constexpr Tables kTables = make_tables();

/// Takes the bytes into a remainder, which is not inverted before or after.
uint32_t remainder(const std::byte* at, const std::byte* end, uint32_t x) {
  for (; end - at >= kBytes; at += kBytes) {
    std::array<uint32_t, 2> word;
    std::memcpy(word.data(), at, sizeof word);
    word[0] ^= x;
    x = 0;
    for (size_t i = 0; i < kBytes; ++i)
      x ^= kTables[kBytes - 1 - i][(word[i / 4] >> (8 * (i % 4))) & 0xff];
  }
  for (; at != end; ++at) x = (x >> 8) ^ kTables[0][(x ^ static_cast<uint32_t>(*at)) & 0xff];
  return x;
}

constexpr ptrdiff_t kLane = 16, kLanes = 4, kStep = kLane * kLanes;

/// Moves a lane on: the same remainder, so much further before the end.
__attribute__((target("pclmul"))) __m128i moved(__m128i lane, __m128i factors) {
  return _mm_xor_si128(_mm_clmulepi64_si128(lane, factors, 0x00),
                       _mm_clmulepi64_si128(lane, factors, 0x11));
}

/// The same by products of polynomials, of at least kStep bytes: four lanes side by side, at the
/// rate of memory, where the tables have some 2 GB/s.
__attribute__((target("pclmul"))) uint32_t folded_remainder(const std::byte* at,
                                                            const std::byte* end, uint32_t x) {
  // x^(8 n + 32) and x^(8 n - 32) modulo the polynomial, reversed, for n = kStep and n = kLane.
  const __m128i by_step = _mm_set_epi64x(0x1c6e41596, 0x154442bd4),
                by_lane = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  const auto load = [](const std::byte* from) __attribute__((target("pclmul"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  __m128i lanes[kLanes];
  for (ptrdiff_t i = 0; i < kLanes; ++i) lanes[i] = load(at + i * kLane);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(x)));
  for (at += kStep; end - at >= kStep; at += kStep)
    for (ptrdiff_t i = 0; i < kLanes; ++i)
      lanes[i] = _mm_xor_si128(moved(lanes[i], by_step), load(at + i * kLane));
  __m128i one = lanes[0];
  for (ptrdiff_t i = 1; i < kLanes; ++i) one = _mm_xor_si128(moved(one, by_lane), lanes[i]);
  std::array<std::byte, kLane> last;
  std::memcpy(last.data(), &one, sizeof one);
  return remainder(at, end, remainder(last.data(), last.data() + kLane, 0));
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  static const bool folds = __builtin_cpu_supports("pclmul") != 0;
  const std::byte *at = bytes.data(), *end = at + bytes.size();
  return ~(folds && end - at >= kStep ? folded_remainder(at, end, ~before)
                                      : remainder(at, end, ~before));
}

}  // namespace tandem
