// The operations of low-rank adapters beside their products.
#include <algorithm>

#include "kernels/differences.h"
#include "kernels/elementwise_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr double kF32 = 0x1p-23;
constexpr int kWidths[] = {1, 7, 15, 16, 17, 31, 33, 64, 127, 128, 129, 300, 1009};

ActBuffer random(DType act, size_t n, size_t offset, uint32_t stream) {
  ActBuffer b(act, n, offset);
  PhiloxStream draw(5, stream);
  fill(b, draw, 2.0f);
  return b;
}

Buffer<float> random_floats(size_t n, size_t offset, uint32_t stream) {
  Buffer<float> b(n, offset);
  PhiloxStream draw(5, stream);
  fill(b, draw, 2.0f);
  return b;
}

}  // namespace

TEST_SUITE("kernels/dropout") {
  TEST_CASE("every variant drops what the reference drops") {
    constexpr int kRows = 3;
    over_grid(kWidths, [&](Isa isa, DType act, int width, size_t offset) {
      for (const bool add : {false, true}) {
        const auto n = static_cast<size_t>(kRows * width);
        ActBuffer in = random(act, n, offset, 1), got = random(act, n, offset, 2), want = got;
        DropoutParams p{.out = got.data(),
                        .in = in.data(),
                        .n_rows = kRows,
                        .width = width,
                        .act = act,
                        .add = add,
                        .threshold = 20000,
                        .scale = 1.5f,
                        .seed = 0x1234567890abcdefu,
                        .step = 7,
                        .place = 0x10005};
        cpu_table(isa).dropout(p, {0, 1});
        cpu_table(isa).dropout(p, {1, kRows});
        p.out = want.data();
        dropout_ref(p, {0, kRows});
        // One rounding, and that of the product in f32.
        REQUIRE_CLOSE(got, want, [&](size_t) { return 5 * (spacing(act) / 2 + kF32); });
      }
    });
  }

  TEST_CASE("drops about its share, others under other names, and scales the rest") {
    constexpr int kRows = 64, kWidth = 1000;
    std::vector<float> in(kRows * kWidth, 1.0f);
    const auto run = [&](uint64_t seed, uint32_t step, uint32_t place) {
      std::vector<float> out(in.size());
      cpu_table().dropout({.out = out.data(),
                           .in = in.data(),
                           .n_rows = kRows,
                           .width = kWidth,
                           .act = DType::f32,
                           .add = false,
                           .threshold = 65536 / 4,
                           .scale = 4.0f / 3,
                           .seed = seed,
                           .step = step,
                           .place = place},
                          {0, kRows});
      return out;
    };
    const std::vector<float> base = run(1, 2, 3);
    double sum = 0;
    for (const float x : base) {
      REQUIRE((x == 0 || x == 4.0f / 3));
      sum += double{x};
    }
    // Six standard deviations of 64,000 draws.
    constexpr double kCount = kRows * kWidth;
    CHECK(std::abs(sum / kCount - 1) < 6 * std::sqrt(1.0 / 3 / kCount));
    CHECK(run(1, 2, 3) == base);
    for (const auto& other : {run(2, 2, 3), run(1, 3, 3), run(1, 2, 4)}) {
      size_t both = 0;
      for (size_t i = 0; i < base.size(); ++i) both += base[i] == 0 && other[i] == 0 ? 1 : 0;
      const double expected = kCount / 16;
      CHECK(std::abs(static_cast<double>(both) - expected) < 6 * std::sqrt(expected));
    }
  }
}

TEST_SUITE("kernels/magnitude") {
  TEST_CASE("every variant scales as the reference does, and only its columns") {
    constexpr int kRows = 3;
    over_grid(kWidths, [&](Isa isa, DType act, int n, size_t offset) {
      for (const bool all : {false, true}) {
        const DType in_type = all ? DType::f32 : act;
        const int width = n + 5, first = 3;
        const auto size = static_cast<size_t>(kRows * width);
        ActBuffer in = random(in_type, size, offset, 1), got = random(act, size, offset, 2),
                  want = got;
        Buffer<float> scale = random_floats(static_cast<size_t>(n), offset, 3),
                      bias = random_floats(static_cast<size_t>(n), offset, 4);
        ActBuffer sum = random(DType::f32, size, offset, 5), sum_want = sum;
        MagnitudeScaleParams p{.out = got.data(),
                               .in = in.data(),
                               .n_rows = kRows,
                               .width = width,
                               .first = first,
                               .n = n,
                               .scale = scale.data(),
                               .bias = all ? bias.data() : nullptr,
                               .sum = all ? sum.f32.data() : nullptr,
                               .act = act,
                               .in_type = in_type};
        cpu_table(isa).magnitude_scale(p, {0, kRows});
        p.out = want.data();
        p.sum = all ? sum_want.f32.data() : nullptr;
        magnitude_scale_ref(p, {0, kRows});
        // |scale in| <= 4, |(1 - scale) bias| <= 6.
        REQUIRE_CLOSE(got, want, [&](size_t) { return 10 * (spacing(act) / 2 + 4 * kF32); });
        REQUIRE_CLOSE(sum, sum_want, [&](size_t) { return 12 * 5 * kF32; });
      }
    });
  }

  TEST_CASE("a scale of 1 leaves the bits") {
    ActBuffer in = random(DType::f32, 40, 0, 1), out(DType::f32, 40);
    const std::vector<float> ones(40, 1.0f);
    Buffer<float> bias = random_floats(40, 0, 2);
    cpu_table().magnitude_scale({.out = out.data(),
                                 .in = in.data(),
                                 .n_rows = 1,
                                 .width = 40,
                                 .first = 0,
                                 .n = 40,
                                 .scale = ones.data(),
                                 .bias = bias.data(),
                                 .act = DType::f32,
                                 .in_type = DType::f32},
                                {0, 1});
    REQUIRE_CLOSE(out, in, [](size_t) { return 0.0; });
  }

  TEST_CASE("gradients of every variant agree with the reference, which has none where it is 0") {
    constexpr int kRows = 5;
    over_grid(kWidths, [&](Isa isa, DType act, int n, size_t offset) {
      const int width = n + 5, first = 2;
      const auto size = static_cast<size_t>(kRows * width);
      ActBuffer dy = random(act, size, offset, 1), y = random(act, size, offset, 2);
      Buffer<float> magnitude = random_floats(static_cast<size_t>(n), offset, 3),
                    bias = random_floats(static_cast<size_t>(n), offset, 4);
      for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] += magnitude[i] < 0 ? -1.0f : 1.0f;
      magnitude[0] = 0;
      ActBuffer got = random(DType::f32, static_cast<size_t>(n), offset, 5), want = got;
      MagnitudeGradientParams p{.sums = got.f32.data(),
                                .dy = dy.data(),
                                .y = y.data(),
                                .magnitude = magnitude.data(),
                                .n_rows = kRows,
                                .width = width,
                                .first = first,
                                .n = n,
                                .bias = bias.data(),
                                .act = act};
      const float before = got.get(0);
      cpu_table(isa).magnitude_gradient(p, {0, n / 2});
      cpu_table(isa).magnitude_gradient(p, {n / 2, n});
      p.sums = want.f32.data();
      magnitude_gradient_ref(p, {0, n});
      CHECK(got.get(0) == before);
      // Terms are at most 2 * 4.
      REQUIRE_CLOSE(got, want, [&](size_t) { return (kRows + 4) * kF32 * (2 + 8 * kRows); });
    });
  }
}

TEST_SUITE("kernels/weight_norms") {
  TEST_CASE("are those of the rows of W + gamma B A") {
    constexpr int kRows = 9, kIn = 37, kRank = 5;
    constexpr double kGamma = 1.5;
    for (const DType act : kActs) {
      CAPTURE(dtype_name(act));
      ActBuffer w = random(act, kRows * kIn, 0, 1), b = random(act, kRows * kRank, 0, 2),
                a = random(act, kRank * kIn, 0, 3);
      for (size_t i = 0; i < kIn; ++i) w.set(4 * kIn + i, 0);
      for (size_t k = 0; k < kRank; ++k) b.set(4 * kRank + k, 0);
      const auto at = [](ActBuffer& m, int cols, int r, int c) {
        return double{m.get(static_cast<size_t>(r * cols + c))};
      };
      std::vector<float> wa(kRows * kRank), aa(kRank * kRank), squares(kRows), scale(kRows);
      const std::vector<float> magnitude(kRows, 2.0f);
      for (int k = 0; k < kRank; ++k) {
        for (int r = 0; r < kRows; ++r)
          for (int i = 0; i < kIn; ++i)
            wa[static_cast<size_t>(r * kRank + k)] +=
                static_cast<float>(at(w, kIn, r, i) * at(a, kIn, k, i));
        for (int j = 0; j < kRank; ++j)
          for (int i = 0; i < kIn; ++i)
            aa[static_cast<size_t>(k * kRank + j)] +=
                static_cast<float>(at(a, kIn, j, i) * at(a, kIn, k, i));
      }
      cpu_table().row_squares(
          {.squares = squares.data(), .weights = w.data(), .rows = kRows, .in = kIn, .act = act},
          {0, kRows});
      std::vector<float> norms(kRows);
      cpu_table().row_squares({.squares = norms.data(),
                               .weights = w.data(),
                               .rows = kRows,
                               .in = kIn,
                               .act = act,
                               .root = true},
                              {0, kRows});
      cpu_table().weight_norms({.scale = scale.data(),
                                .squares = squares.data(),
                                .wa = wa.data(),
                                .aa = aa.data(),
                                .b = b.data(),
                                .magnitude = magnitude.data(),
                                .gamma = static_cast<float>(kGamma),
                                .rows = kRows,
                                .rank = kRank,
                                .act = act},
                               {0, kRows});
      for (int r = 0; r < kRows; ++r) {
        CAPTURE(r);
        double want = 0, own = 0;
        for (int i = 0; i < kIn; ++i) {
          double x = at(w, kIn, r, i);
          own += x * x;
          for (int k = 0; k < kRank; ++k) x += kGamma * at(b, kRank, r, k) * at(a, kIn, k, i);
          want += x * x;
        }
        CHECK(squares[static_cast<size_t>(r)] == doctest::Approx(own).epsilon(1e-6));
        CHECK(norms[static_cast<size_t>(r)] ==
              std::max(std::sqrt(squares[static_cast<size_t>(r)]), kLeastWeightNorm));
        if (r == 4)
          CHECK(scale[4] == 2.0f / kLeastWeightNorm);
        else
          CHECK(scale[static_cast<size_t>(r)] ==
                doctest::Approx(2 / std::sqrt(want)).epsilon(1e-4));
      }
    }
  }
}
