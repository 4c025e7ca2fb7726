#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/convert.h"

using namespace tandem;

TEST_SUITE("base/convert") {
  TEST_CASE("bf16 rounds to nearest, ties to even") {
    CHECK(to_bf16(1.0f).bits == 0x3f80);
    CHECK(to_bf16(1.0f + 0x1p-8f).bits == 0x3f80);             // tie, even below
    CHECK(to_bf16(1.0f + 0x1p-7f + 0x1p-8f).bits == 0x3f82);   // tie, even above
    CHECK(to_bf16(1.0f + 0x1p-8f + 0x1p-20f).bits == 0x3f81);  // just over the tie
    CHECK(to_bf16(-0.0f).bits == 0x8000);
    CHECK(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
    CHECK(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  }

  TEST_CASE("every f16 survives the trip through f32") {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const f16 h{static_cast<uint16_t>(bits)};
      const float x = to_float(h);
      if (std::isnan(x)) {
        CHECK(std::isnan(to_float(to_f16(x))));
      } else {
        REQUIRE(to_f16(x).bits == h.bits);
      }
    }
  }

  TEST_CASE("f16 rounds to nearest, ties to even, at every binade edge") {
    CHECK(to_f16(65504.0f).bits == 0x7bff);
    CHECK(to_f16(65519.0f).bits == 0x7bff);
    CHECK(to_f16(65520.0f).bits == 0x7c00);  // the tie rounds to infinity
    CHECK(to_f16(0x1p-25f).bits == 0x0000);  // tie with zero
    CHECK(to_f16(0x1.8p-25f).bits == 0x0001);
    CHECK(to_f16(0x1.ff8p-15f).bits == 0x03ff);  // the largest subnormal
    CHECK(to_f16(0x1.ffcp-15f).bits == 0x0400);  // half a unit above: the tie rounds to a normal
  }
}
