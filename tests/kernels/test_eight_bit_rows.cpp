// Rows of keys and values in eight bits: their error, and that they keep their bytes.
#include "kernels/eight_bit_case.h"
#include "kernels/variants.h"

using namespace tandem;
using namespace tandem::test;

namespace {

struct Bodies {
  Isa isa;
  NarrowRowsFn* narrow;
  WidenEightBitRowsFn* widen;
};

std::vector<Bodies> bodies() {
  std::vector<Bodies> all = {{Isa::scalar, narrow_rows_scalar, widen_eight_bit_rows_scalar},
                             {Isa::avx2, narrow_rows_avx2, widen_eight_bit_rows_avx2},
                             {Isa::avx512, narrow_rows_avx512, widen_eight_bit_rows_avx512}};
  std::erase_if(all, [](const Bodies& b) { return b.isa > isa_detected(); });
  return all;
}

/// In two parts.
void run(NarrowRowsFn* body, EightBitCase& c) {
  body(c.params(), {0, 3});
  body(c.params(), {3, c.n_rows});
}

/// The scale by its definition: 16 significant bits of the largest magnitude over 127, in f32.
float scale_of(const EightBitCase& c, int row) {
  float most = 0;
  for (int i = 0; i < c.d; ++i) most = std::max(most, std::abs(c.get(row, i)));
  if (most < 0x1p-100f) return 0;
  const float whole = most / 127;
  int exponent = 0;
  std::frexp(whole, &exponent);
  const float unit = std::ldexp(1.0f, exponent - 16);
  return std::trunc(whole / unit) * unit;
}

}  // namespace

TEST_SUITE("kernels/eight_bit_rows") {
  TEST_CASE("whole numbers and a scale, each element off by .504 of it at most") {
    for (const Bodies& b : bodies())
      for (EightBitCase c : eight_bit_cases()) {
        CAPTURE(isa_name(b.isa));
        CAPTURE(c.d);
        CAPTURE(dtype_name(c.dtype));
        run(b.narrow, c);
        double worst = 0;
        int wrong = 0;
        for (int row = 0; row < c.n_rows; ++row) {
          wrong +=
              c.scales[static_cast<size_t>(row * EightBitCase::kStride + 1)] != EightBitCase::kGap
                  ? 1
                  : 0;
          if (!c.is_finite(row)) {
            wrong += std::isnan(c.scale(row)) ? 0 : 1;
            continue;
          }
          const float scale = scale_of(c, row);
          wrong += c.scale(row) == scale ? 0 : 1;
          int most = 0;
          for (int i = 0; i < c.d; ++i) {
            most = std::max(most, std::abs(static_cast<int>(c.number(row, i))));
            if (scale == 0) continue;
            worst = std::max(
                worst,
                std::abs(static_cast<double>(c.number(row, i)) * scale - c.get(row, i)) / scale);
          }
          wrong += most == (scale == 0 ? 0 : 127) ? 0 : 1;
        }
        CHECK(wrong == 0);
        CHECK(worst <= 0.504);
      }
  }

  TEST_CASE("the same bytes on every ISA") {
    for (const EightBitCase& c : eight_bit_cases()) {
      EightBitCase want = c;
      run(narrow_rows_scalar, want);
      EightBitCase wide = want;
      widen_eight_bit_rows_scalar(wide.params(), {0, wide.n_rows});
      for (const Bodies& b : bodies()) {
        CAPTURE(isa_name(b.isa));
        CAPTURE(c.d);
        EightBitCase got = c;
        run(b.narrow, got);
        CHECK(got.same_narrow(want));
        EightBitCase again = want;
        b.widen(again.params(), {0, again.n_rows});
        int wrong = 0;
        for (int row = 0; row < c.n_rows; ++row)
          for (int i = 0; i < c.d; ++i)
            wrong += c.is_finite(row) ? again.get(row, i) != wide.get(row, i)
                                      : !std::isnan(again.get(row, i));
        CHECK(wrong == 0);
      }
    }
  }

  TEST_CASE("a row that is made wide and narrow again, and again, has the same bytes") {
    for (const Bodies& b : bodies())
      for (const DType type : {DType::f32, DType::bf16})
        for (const int d : {20, 64, 128}) {
          CAPTURE(isa_name(b.isa));
          CAPTURE(dtype_name(type));
          EightBitCase c(type, d, 20000);
          run(b.narrow, c);
          for (int turn = 0; turn < 2; ++turn) {
            EightBitCase again = c;
            b.widen(again.params(), {0, again.n_rows});
            run(b.narrow, again);
            REQUIRE(again.same_narrow(c));
            c = again;
          }
        }
  }

  TEST_CASE("a wide row is number times scale, rounded once; in f32 that is exact") {
    for (const Bodies& b : bodies())
      for (const DType type : {DType::f32, DType::bf16}) {
        EightBitCase c(type, 128);
        run(b.narrow, c);
        EightBitCase wide = c;
        b.widen(wide.params(), {0, wide.n_rows});
        int wrong = 0;
        for (int row = 0; row < c.n_rows; ++row)
          for (int i = 0; c.is_finite(row) && i < c.d; ++i) {
            const double exact = static_cast<double>(c.number(row, i)) * c.scale(row);
            const float want = type == DType::f32 ? static_cast<float>(exact)
                                                  : to_float(to_bf16(static_cast<float>(exact)));
            wrong += wide.get(row, i) == want && static_cast<float>(exact) == exact ? 0 : 1;
          }
        CHECK(wrong == 0);
      }
  }
}
