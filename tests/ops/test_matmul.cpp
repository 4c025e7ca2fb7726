#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"
#include "ops/matmul.h"

using namespace tandem;

namespace {

/// A matrix in the middle of a wider one.
struct Part {
  static constexpr int64_t kBefore = 3, kAfter = 2;
  DType type;
  int64_t rows, cols;
  std::vector<float> wide;
  std::vector<bf16> half;

  Part(DType t, int64_t r, int64_t c, uint32_t stream) : type(t), rows(r), cols(c) {
    PhiloxStream draw(7, stream);
    for (int64_t i = 0; i < r * stride(); ++i) {
      wide.push_back(static_cast<float>(draw.uniform() * 2 - 1));
      if (t == DType::bf16) half.push_back(to_bf16(wide.back()));
    }
  }
  int64_t stride() const { return cols + kBefore + kAfter; }
  ops::MatrixView view() {
    void* const all = type == DType::bf16 ? static_cast<void*>(half.data()) : wide.data();
    return ops::MatrixView(all, type, rows, stride()).columns(kBefore, cols);
  }
  double flat(int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return type == DType::bf16 ? to_float(half[at]) : wide[at];
  }
  double at(int64_t r, int64_t c) const { return flat(r * stride() + kBefore + c); }
};

}  // namespace

TEST_SUITE("ops/matmul") {
  TEST_CASE("products of parts of matrices, transposed or not, and no other number is written") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const DType c_type : {DType::f32, type})
        for (const bool at : {false, true})
          for (const bool bt : {false, true})
            for (const bool accumulate : {false, true})
              for (const int64_t k : {1, 8, 77}) {
                CAPTURE(dtype_name(type));
                CAPTURE(dtype_name(c_type));
                CAPTURE(at);
                CAPTURE(bt);
                CAPTURE(accumulate);
                CAPTURE(k);
                constexpr int64_t kRows = 19, kCols = 35;
                const float scale = accumulate ? 1.0f : 1.5f;
                Part a(type, at ? k : kRows, at ? kRows : k, 1);
                Part b(type, bt ? kCols : k, bt ? k : kCols, 2), c(c_type, kRows, kCols, 3);
                const Part before = c;
                std::vector<std::byte> workspace(
                    ops::matmul_workspace_bytes(type, kRows * kCols + k * (kRows + kCols) + 64));
                ops::matmul({.c = c.view(),
                             .a = a.view(),
                             .b = b.view(),
                             .a_transposed = at,
                             .b_transposed = bt,
                             .scale = scale,
                             .accumulate = accumulate},
                            workspace);
                double worst = 0;
                for (int64_t r = 0; r < kRows; ++r)
                  for (int64_t n = 0; n < c.stride(); ++n) {
                    double want = before.flat(r * c.stride() + n);
                    const int64_t col = n - Part::kBefore;
                    if (col >= 0 && col < kCols) {
                      double sum = 0;
                      for (int64_t i = 0; i < k; ++i)
                        sum += (at ? a.at(i, r) : a.at(r, i)) * (bt ? b.at(col, i) : b.at(i, col));
                      want = double{scale} * sum + (accumulate ? want : 0);
                    }
                    worst = std::max(worst, std::abs(c.flat(r * c.stride() + n) - want));
                  }
                // Of c one rounding of a number up to 16; sums of 77 terms in f32.
                CHECK(worst < (c_type == DType::bf16 ? 16 * 0x1p-9 : 77 * 0x1p-22));
              }
  }

  TEST_CASE("a wide result in bf16 is that of its rows alone") {
    constexpr int64_t kRows = 40, kCols = 40000, kInner = 3;
    Part a(DType::bf16, kRows, kInner, 1), b(DType::bf16, kInner, kCols, 2);
    Part whole(DType::bf16, kRows, kCols, 3), rows = whole;
    std::vector<std::byte> workspace(
        ops::matmul_workspace_bytes(DType::bf16, kRows * kCols + kInner * (kRows + kCols)));
    const auto add = [&](Part& c, int64_t first, int64_t n) {
      ops::matmul({.c = c.view().slice(first, n),
                   .a = a.view().slice(first, n),
                   .b = b.view(),
                   .accumulate = true},
                  workspace);
    };
    add(whole, 0, kRows);
    for (int64_t r = 0; r < kRows; ++r) add(rows, r, 1);
    double worst = 0;
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t c = 0; c < kCols; ++c)
        worst = std::max(worst, std::abs(whole.at(r, c) - rows.at(r, c)));
    CHECK(worst <= 4 * 0x1p-8);  // at most 4, of which sums may be rounded the other way
  }

  TEST_CASE("of no rows nothing is written") {
    float x = 1;
    const ops::MatrixView none(&x, DType::f32, 0, 1), one(&x, DType::f32, 1, 1);
    ops::matmul({.c = none, .a = none, .b = one}, {});
    CHECK(x == 1);
  }
}
