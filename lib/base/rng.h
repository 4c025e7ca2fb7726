#pragma once
#include <array>
#include <cstdint>

#include "base/philox.h"

namespace tandem {

/// A block of Philox4x32-10 (base/philox.h).
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  const PhiloxBlock block = philox_block({{counter[0], counter[1], counter[2], counter[3]}},
                                         uint64_t{key[1]} << 32 | key[0]);
  return {block.w[0], block.w[1], block.w[2], block.w[3]};
}

/// Four uniform words for one (seed, sequence, position, purpose); `node` is one of a tree.
constexpr std::array<uint32_t, 4> draw4(uint64_t seed, uint32_t sequence, uint32_t position,
                                        DrawPurpose purpose, uint32_t node = 0) {
  return philox4x32({sequence, position, static_cast<uint32_t>(purpose), node},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// Uniform in [0, 1) with 53 bits from two words.
constexpr double uniform53(uint32_t hi, uint32_t lo) { return uniform_of(hi, lo); }

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
