#include <doctest/doctest.h>

#include "base/convert.h"
#include "base/error.h"
#include "base/weight_format.h"

using namespace tandem;

namespace {

constexpr DType kNumbers[] = {DType::f32, DType::bf16, DType::f16};

// A double of formats that no product multiplies yet.
const WeightFormat kGroups(Code::i4, 64, ScaleType::f16, Zero::integer);

}  // namespace

TEST_SUITE("base/weight_format") {
  TEST_CASE("numbers are formats named as they are, in their bytes") {
    for (const DType t : kNumbers) {
      const WeightFormat f = t;
      CHECK(format_name(f) == dtype_name(t));
      CHECK(numbers_of(f) == t);
      CHECK(widens_to(f) == t);
      CHECK(row_bytes(f, 33) == 33 * dtype_bytes(t));
      CHECK(cut_unit(f, 33) == 1);
      CHECK(matrix_bytes(f, 7, 33) == 7 * 33 * dtype_bytes(t));
      for (const DType other : kNumbers) CHECK((f == other) == (t == other));
    }
    CHECK_THROWS_AS(WeightFormat(DType::i32), Error);
  }

  TEST_CASE("codes in groups take their bits, a scale and a zero a group, in whole groups") {
    CHECK(format_name(kGroups) == "i4 g64 f16 integer");
    CHECK(widens_to(kGroups) == DType::bf16);
    CHECK_THROWS_AS(numbers_of(kGroups), Error);
    CHECK(cut_unit(kGroups, 128) == 64);
    CHECK(cut_unit({Code::i4, 0, ScaleType::f16, Zero::none}, 100) == 100);
    CHECK(row_bytes(kGroups, 128) == 2 * (32 + 3));
    CHECK(row_bytes(kGroups, 129) == 3 * (32 + 3));
    CHECK(matrix_bytes(kGroups, 5, 128) == 5 * 2 * (32 + 3));
    CHECK(row_bytes({Code::i4, 32, ScaleType::bf16, Zero::none}, 64) == 2 * (16 + 2));
    CHECK(row_bytes({Code::i4, 32, ScaleType::f16, Zero::minimum}, 64) == 2 * (16 + 4));
    CHECK(row_bytes({Code::i4, 0, ScaleType::f16, Zero::none}, 100) == 50 + 2);
    CHECK(format_name({Code::i8, 32, ScaleType::f16, Zero::none}) == "i8 g32 f16");
    CHECK(row_bytes({Code::i8, 32, ScaleType::f16, Zero::none}, 64) == 2 * (32 + 2));
    CHECK(row_bytes({Code::i5, 32, ScaleType::f16, Zero::none}, 64) == 2 * (20 + 2));
    CHECK(row_bytes({Code::i5, 32, ScaleType::f16, Zero::minimum}, 65) == 3 * (20 + 4));
    const WeightFormat fp8(Code::fp8, 0, ScaleType::f32, Zero::none);
    CHECK(format_name(fp8) == "fp8 f32");
    CHECK(widens_to(fp8) == DType::bf16);
    CHECK(row_bytes(fp8, 100) == 100 + 4);
    CHECK(scale_bytes(fp8) == 4);
    CHECK(scale_bytes(kGroups) == 3);
    CHECK(scale_bytes(DType::f32) == 0);
    const WeightFormat blocks(Code::i6, 16, ScaleType::two_level, Zero::none);
    CHECK(format_name(blocks) == "i6 g16 two-level");
    CHECK(cut_unit(blocks, 1024) == 256);
    CHECK(row_bytes(blocks, 512) == 2 * 210);
    CHECK(row_bytes({Code::i5, 32, ScaleType::two_level, Zero::minimum}, 257) == 2 * 180);
    CHECK(row_bytes({Code::i4, 32, ScaleType::two_level, Zero::minimum}, 256) == 148);
    CHECK(is_coded(kGroups));
    CHECK_FALSE(is_coded(DType::bf16));
    CHECK(kGroups != WeightFormat(Code::i4, 128, ScaleType::f16, Zero::integer));
  }
}
