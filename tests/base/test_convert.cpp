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

  TEST_CASE("every fp8 code survives the trip through f32; halves round to even codes") {
    CHECK(fp8_number(0x00) == 0.0f);
    CHECK(fp8_number(0x01) == 0x1p-9f);
    CHECK(fp8_number(0x08) == 0x1p-6f);
    CHECK(fp8_number(0x38) == 1.0f);
    CHECK(fp8_number(0x7e) == 448.0f);
    CHECK(fp8_number(0xfe) == -448.0f);
    CHECK(std::isnan(fp8_number(0x7f)));
    CHECK(fp8_code(1e30f) == 0x7e);
    CHECK(fp8_code(-464.1f) == 0xfe);
    CHECK(fp8_code(0x1p-11f) == 0);
    for (int code = 0; code < 0x7f; ++code) {
      const float x = fp8_number(static_cast<uint8_t>(code));
      CHECK(fp8_code(x) == code);
      CHECK(fp8_code(-x) == (code | 0x80));
      if (code == 0x7e) continue;
      const float next = fp8_number(static_cast<uint8_t>(code + 1)), half = (x + next) / 2;
      CHECK(next > x);
      CHECK(fp8_code(half) == code + code % 2);
      CHECK(fp8_code(std::nextafter(half, 0.0f)) == code);
      CHECK(fp8_code(std::nextafter(half, 500.0f)) == code + 1);
    }
  }
}
