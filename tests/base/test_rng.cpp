#include <doctest/doctest.h>

#include <vector>

#include "base/rng.h"

using namespace tandem;

TEST_SUITE("base/rng") {
  // Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
  TEST_CASE("Philox4x32-10 known answers") {
    CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) ==
          std::array<uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
    CHECK(philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                     {0xffffffffu, 0xffffffffu}) ==
          std::array<uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
    CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                     {0xa4093822u, 0x299f31d0u}) ==
          std::array<uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
  }

  TEST_CASE("draws differ by every part of their name") {
    const auto base = draw4(1, 2, 3, DrawPurpose::sample);
    CHECK(base == draw4(1, 2, 3, DrawPurpose::sample));
    CHECK(base != draw4(2, 2, 3, DrawPurpose::sample));
    CHECK(base != draw4(1, 3, 3, DrawPurpose::sample));
    CHECK(base != draw4(1, 2, 4, DrawPurpose::sample));
    CHECK(base != draw4(1, 2, 3, DrawPurpose::accept));
    CHECK(base != draw4(1, 2, 3, DrawPurpose::sample, 1));
    CHECK(base != draw4(uint64_t{1} << 32 | 1, 2, 3, DrawPurpose::sample));
  }

  TEST_CASE("below(n) is uniform") {
    PhiloxStream stream(7);
    constexpr uint32_t n = 10;
    constexpr int draws = 100000;
    std::vector<int> count(n);
    for (int i = 0; i < draws; ++i) ++count[stream.below(n)];
    double chi2 = 0;
    for (const int c : count) chi2 += (c - draws / 10.0) * (c - draws / 10.0) / (draws / 10.0);
    CHECK(chi2 < 27.88);  // 9 degrees of freedom, p = 0.001
  }
}
