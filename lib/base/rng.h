#pragma once
#include <array>
#include <cstdint>

namespace tandem {

/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy
/// as 1, 2, 3" (SC11): a pure function of key and counter, so any draw can be recomputed anywhere.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// What a draw is for; part of the counter, so that no two uses ever share a number.
enum class DrawPurpose : uint32_t {
  sample = 0,
  accept = 1,
  residual = 2,
  data = 3,
  weights = 4,
  keys = 5,      // that sparse attention samples
  children = 6,  // of a node of a tree of draft tokens
};

/// Four uniform words for one (seed, sequence, position, purpose); `node` tells tree nodes apart.
constexpr std::array<uint32_t, 4> draw4(uint64_t seed, uint32_t sequence, uint32_t position,
                                        DrawPurpose purpose, uint32_t node = 0) {
  return philox4x32({sequence, position, static_cast<uint32_t>(purpose), node},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// Uniform in [0, 1) with 53 bits from two words.
constexpr double uniform53(uint32_t hi, uint32_t lo) {
  return static_cast<double>(((uint64_t{hi} << 32) | lo) >> 11) * 0x1.0p-53;
}

/// The number in [0, 1) of a name.
constexpr double draw_uniform(uint64_t seed, uint32_t sequence, uint32_t position,
                              DrawPurpose purpose, uint32_t node = 0) {
  const auto words = draw4(seed, sequence, position, purpose, node);
  return uniform53(words[0], words[1]);
}

/// Sequential stream over one counter space, for data generators and tests.
class PhiloxStream {
 public:
  explicit constexpr PhiloxStream(uint64_t seed, uint32_t stream = 0)
      : seed_(seed), stream_(stream) {}

  constexpr uint32_t next() {
    if (used_ == 4) {
      words_ = draw4(seed_, stream_, block_++, DrawPurpose::data);
      used_ = 0;
    }
    return words_[used_++];
  }
  /// Uniform integer in [0, n), n > 0, without modulo bias (Lemire's multiply-and-reject).
  constexpr uint32_t below(uint32_t n) {
    const uint32_t threshold = (0u - n) % n;
    while (true) {
      const uint64_t product = uint64_t{next()} * n;
      if (static_cast<uint32_t>(product) >= threshold) return static_cast<uint32_t>(product >> 32);
    }
  }
  constexpr double uniform() {
    const uint32_t hi = next();
    return uniform53(hi, next());
  }

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint32_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  unsigned used_ = 4;
};

}  // namespace tandem
