#include "base/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace tandem {
namespace {

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

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  static_assert(std::endian::native == std::endian::little);
  uint32_t x = ~before;
  const std::byte *at = bytes.data(), *end = at + bytes.size();
  for (; end - at >= kBytes; at += kBytes) {
    std::array<uint32_t, 2> word;
    std::memcpy(word.data(), at, sizeof word);
    word[0] ^= x;
    x = 0;
    for (size_t i = 0; i < kBytes; ++i)
      x ^= kTables[kBytes - 1 - i][(word[i / 4] >> (8 * (i % 4))) & 0xff];
  }
  for (; at != end; ++at) x = (x >> 8) ^ kTables[0][(x ^ static_cast<uint32_t>(*at)) & 0xff];
  return ~x;
}

}  // namespace tandem
