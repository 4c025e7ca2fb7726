#include "base/sha256.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>

namespace tandem {
namespace {

using State = std::array<uint32_t, 8>;
constexpr size_t kBlock = 64;

/// First 32 bits of the fractional part of the cube root of the i-th prime, by integer bisection of
/// r^3 <= p * 2^96 on r = cbrt(p) * 2^32; 128-bit products split to stay in range.
constexpr uint32_t cube_root_fraction(uint64_t p) {
  using u128 = unsigned __int128;
  uint64_t low = 0, high = uint64_t{8} << 32;  // cbrt(311) < 8
  while (high - low > 1) {
    const uint64_t r = low + (high - low) / 2;
    // r^3 <= p << 96  <=>  r*r <= (p << 96) / r, with (p << 96) below 2^105
    if (u128{r} * r <= (u128{p} << 96) / r)
      low = r;
    else
      high = r;
  }
  return static_cast<uint32_t>(low);
}

constexpr std::array<uint32_t, 64> round_constants() {
  std::array<uint32_t, 64> k{};
  uint64_t candidate = 2;
  for (auto& constant : k) {
    const auto is_prime = [](uint64_t n) {
      for (uint64_t d = 2; d * d <= n; ++d)
        if (n % d == 0) return false;
      return true;
    };
    while (!is_prime(candidate)) ++candidate;
    constant = cube_root_fraction(candidate++);
  }
  return k;
}

constexpr auto kRound = round_constants();
static_assert(kRound[0] == 0x428a2f98u && kRound[63] == 0xc67178f2u);

void absorb(State& state, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i)
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | uint32_t{block[4 * i + 3]};
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State update = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += update[i];
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  // Fractional parts of the square roots of the first eight primes.
  State state = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= kBlock; left -= kBlock, p += kBlock) absorb(state, p);

  // Tail: the rest, a one bit, zeros, and the length in bits, in one or two blocks.
  std::array<unsigned char, 2 * kBlock> tail{};
  for (size_t i = 0; i < left; ++i) tail[i] = p[i];
  tail[left] = 0x80;
  const size_t used = left < kBlock - 8 ? kBlock : 2 * kBlock;
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (size_t i = 0; i < 8; ++i) tail[used - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
  for (size_t i = 0; i < used; i += kBlock) absorb(state, tail.data() + i);

  std::string hex;
  for (uint32_t word : state) hex += fmt::format("{:08x}", word);
  return hex;
}

}  // namespace tandem
