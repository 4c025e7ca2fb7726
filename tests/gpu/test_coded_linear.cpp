#include <cmath>

#include "gpu/coded_weights.h"
#include "kernels/cuda_table.h"
#include "ops/elementwise.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// True if this number of rows multiplies the codes of a matrix as they are.
bool multiplies(const OnGpu& w, int64_t rows) {
  constexpr int64_t kInPasses = 48;
  const CodeTiles* const tiles = w.packed.device_codes();
  if (tiles == nullptr || rows == 0) return false;
  const auto fits = [&](int64_t n) {
    return cuda_table().coded_linear_fits(*tiles, static_cast<int>(n), false);
  };
  return fits(rows) || (rows <= kInPasses && fits(std::min<int64_t>(rows, 16)));
}

/// Inputs after rounding to fp8, with a scale for each `group` of them, or each row.
ActBuffer rounded_to_fp8(ActBuffer& x, int64_t rows, int64_t in, int64_t group) {
  ActBuffer to(DType::f32, static_cast<size_t>(rows * in));
  const int64_t unit = group == 0 ? in : group;
  for (int64_t first = 0; first < rows * in; first += unit) {
    float most = 0;
    for (int64_t i = first; i < first + unit; ++i)
      most = std::max(most, std::abs(x.get(static_cast<size_t>(i))));
    const float scale = most / 448;
    for (int64_t i = first; i < first + unit; ++i)
      to.set(static_cast<size_t>(i),
             scale == 0 ? 0 : scale * fp8_number(fp8_code(x.get(static_cast<size_t>(i)) / scale)));
  }
  return to;
}

/// The largest between numbers of `a` and the first ones of `b`.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(double{a[i]} - b[i]);
    most = d <= most ? most : d;
  }
  return most;
}

}  // namespace

TEST_SUITE("gpu/ops/coded_linear") {
  TEST_CASE("agrees with a double-precision product in every format, with every number of rows") {
    for (const int in : {64, 200, 576, 1040})
      for (const CodedMatrix& m : coded_formats(in)) {
        if (!ops::multiplies_codes(format_of(m), DType::bf16, kGpu)) continue;
        const CodedCase c(m, 77, 1);
        const OnGpu plain({&c}), with_bias({&c}, {.bias = true});
        const std::vector<float> weights = weights_of(c);
        for (const int64_t rows : {1, 2, 7, 9, 16, 17, 40, 81, 130}) {
          CAPTURE(format_name(format_of(m)));
          CAPTURE(in);
          CAPTURE(rows);
          ActBuffer x = random_input(rows * in);
          const double rounding = rounding_of(m);
          const bool widened = !multiplies(plain, rows);
          const std::vector<float> start(static_cast<size_t>(rows * 77), 0.25f);
          CHECK(worst(product(plain, x, rows),
                      wanted(weights, x, rows, 77, in, nullptr, nullptr, widened, rounding)) <= 1);
          const Wanted want =
              wanted(weights, x, rows, 77, in, c.bias.data(), &start, widened, rounding);
          CHECK(worst(product(with_bias, x, rows, DType::f32, &start), want) <= 1);
          CHECK(worst(product(plain, x, rows, DType::bf16),
                      wanted(weights, x, rows, 77, in, nullptr, nullptr, widened, rounding),
                      0x1p-8) <= 1);
        }
      }
  }

  TEST_CASE("a row's bits depend on no other row, and are the same again") {
    for (const CodedMatrix& m : coded_formats(512)) {
      if (!ops::multiplies_codes(format_of(m), DType::bf16, kGpu)) continue;
      CAPTURE(format_name(format_of(m)));
      const CodedCase c(m, 330, 1);
      const OnGpu w({&c});
      ActBuffer x = random_input(64 * 512);
      const std::vector<float> all = product(w, x, 16), few = product(w, x, 4);
      CHECK(worst(all, wanted(weights_of(c), x, 16, 330, 512, nullptr, nullptr, false,
                              rounding_of(m))) <= 1);
      CHECK(distance(product(w, x, 16), all) == 0);
      CHECK(distance(product(w, x, 5), all) == 0);
      CHECK(distance(product(w, x, 1), few) == 0);
      if (!multiplies(w, 64)) continue;
      const std::vector<float> many = product(w, x, 64);
      CHECK(distance(product(w, x, 17), many) == 0);
      CHECK(distance(product(w, x, 40), many) == 0);
    }
  }

  TEST_CASE("long rows, in as many passes as shared memory asks for") {
    const CodedCase c({Code::i4, ScaleType::f16, Zero::integer, 128, 14336}, 80, 1);
    const OnGpu w({&c});
    const std::vector<float> weights = weights_of(c);
    for (const int64_t rows : {1, 4, 5, 16, 40}) {
      CAPTURE(rows);
      ActBuffer x = random_input(rows * c.m.in);
      CHECK(worst(product(w, x, rows),
                  wanted(weights, x, rows, 80, c.m.in, nullptr, nullptr, true)) <= 1);
    }
  }

  TEST_CASE("gates what it gates, in one kernel or two, with one format or two") {
    const CodedCase gates({Code::i4, ScaleType::f16, Zero::integer, 64, 256}, 44, 1),
        both({Code::i4, ScaleType::f16, Zero::integer, 64, 256}, 88, 1),
        ups({Code::i8, ScaleType::f16, Zero::none, 32, 256}, 44, 1);
    const std::vector<float> of_both = weights_of(both);
    std::vector<float> of_stack = weights_of(gates);
    const std::vector<float> of_ups = weights_of(ups);
    of_stack.insert(of_stack.end(), of_ups.begin(), of_ups.end());
    const OnGpu paired({&both}, {.gated = true}), stack({&gates, &ups}, {.gated = true});
    for (const int64_t rows : {1, 3, 16, 33, 90, 300})
      for (const OnGpu* w : {&paired, &stack}) {
        CAPTURE(rows);
        ActBuffer x = random_input(rows * 256);
        const Wanted want = wanted(w == &paired ? of_both : of_stack, x, rows, 88, 256, nullptr,
                                   nullptr, rows > 48);
        CHECK(worst(product(*w, x, rows), want) <= 1);  // gates and ups in order
        const std::vector<float> got = product(*w, x, rows, DType::f32, nullptr, Gate::silu);
        double most = 0, largest = 0;
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < 44; ++o) {
            const double g = want.y[static_cast<size_t>(r * 88 + o)],
                         y = g / (1 + std::exp(-g)) * want.y[static_cast<size_t>(r * 88 + 44 + o)];
            const double d = std::abs(got[static_cast<size_t>(r * 44 + o)] - y);
            most = d <= most ? most : d;
            largest = std::max(largest, std::abs(y));
          }
        CHECK(most <= (rows > 48 ? 1e-2 : 1e-4) * largest);
      }
  }

  TEST_CASE("fused norms multiply the normalised input") {
    const CodedCase c({Code::i4, ScaleType::f16, Zero::integer, 32, 416}, 96, 1);
    const OnGpu w({&c}, {.gated = true});
    constexpr int64_t kRows = 3, kIn = 416;
    std::vector<float> input, norm;
    PhiloxStream stream(5, 1);
    for (int64_t i = 0; i < kRows * kIn; ++i) input.push_back(random_float(stream, 3.0f));
    for (int64_t i = 0; i < kIn; ++i) norm.push_back(random_float(stream, 1.0f));
    ActBuffer normed(DType::bf16, input.size());
    for (int64_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < kIn; ++i)
        squares += std::pow(input[static_cast<size_t>(r * kIn + i)], 2);
      const double scale = 1 / std::sqrt(squares / kIn + 1e-5);
      for (int64_t i = 0; i < kIn; ++i)
        normed.set(static_cast<size_t>(r * kIn + i),
                   static_cast<float>(input[static_cast<size_t>(r * kIn + i)] * scale *
                                      norm[static_cast<size_t>(i)]));
    }
    const DeviceBuffer x(input), weights(norm), y(kRows * 96 * sizeof(float));
    const ops::LinearFusion fusion{.norm_weight = weights.as<float>(), .norm_eps = 1e-5f};
    REQUIRE(ops::can_fuse(w.packed, kRows, fusion));
    ops::linear_fused({y.raw(), DType::f32, {kRows, 96}, kGpu},
                      {x.raw(), DType::f32, {kRows, kIn}, kGpu}, fusion, w.packed,
                      ops::Accumulate::no, queue().stream());
    Wanted want = wanted(weights_of(c), normed, kRows, 96, kIn, nullptr, nullptr, true);
    CHECK(worst(y.vector<float>(), want) <= 1);  // numbers may be rounded to the other neighbour
  }

  TEST_CASE("inputs rounded to fp8, with a scale a row or 128 inputs") {
    if (cuda::gpu().isa != cuda::GpuIsa::hopper) return;  // cuBLASLt has the scales there
    for (const auto& [group, in] : {std::pair{0, 1040}, {0, 4096}, {128, 1024}})
      for (const bool gated : {false, true})
        for (const int64_t rows : {257, 300, 1029}) {
          CAPTURE(group);
          CAPTURE(gated);
          CAPTURE(rows);
          const CodedCase c({Code::fp8, ScaleType::f32, Zero::none, group, in}, 192, 1);
          const OnGpu exact({&c}, {.bias = true, .gated = gated}),
              rounding({&c}, {.bias = true, .gated = gated, .fp8_inputs = true});
          ActBuffer x = random_input(rows * in);
          for (int64_t i = 0; i < in; ++i) x.set(static_cast<size_t>(in + i), 0);  // row 1
          ActBuffer rounded = rounded_to_fp8(x, rows, in, group);
          std::vector<float> bias;
          for (const float b : c.bias) bias.push_back(to_float(to_bf16(b)));
          const std::vector<float> start(static_cast<size_t>(rows * 192), 0.25f);
          // Scales of groups are for multiples of four rows.
          for (int64_t i = (group == 0 ? rows : rows / 4 * 4) * in; i < rows * in; ++i)
            rounded.set(static_cast<size_t>(i), x.get(static_cast<size_t>(i)));
          const Wanted want =
              wanted(weights_of(c), rounded, rows, 192, in, bias.data(), &start, false);
          CHECK(worst(product(rounding, x, rows, DType::f32, &start), want) <= 1);
          CHECK(worst(product(exact, x, rows, DType::f32, &start), want) > 1);
          CHECK(distance(product(rounding, x, 256), product(exact, x, 256)) == 0);
        }
  }

  TEST_CASE("embeds rows of codes with the bits of their numbers") {
    for (const CodedMatrix& m : {CodedMatrix{Code::i4, ScaleType::f16, Zero::minimum, 32, 200},
                                 CodedMatrix{Code::i8, ScaleType::bf16, Zero::none, 64, 192}}) {
      const CodedCase c(m, 53, 1);
      const OnGpu w({&c});
      const std::vector<int32_t> ids = {0, 52, 17, 17, 8, 53, -1};
      const DeviceBuffer out(ids.size() * static_cast<size_t>(m.in) * 4), on_gpu(ids);
      REQUIRE(w.packed.device_codes() != nullptr);
      ops::embed_ids({out.raw(), DType::f32, {std::ssize(ids), m.in}, kGpu},
                     *w.packed.device_codes(), on_gpu.as<int32_t>(), queue().stream());
      const std::vector<float> got = out.vector<float>(), weights = weights_of(c);
      const auto in = static_cast<size_t>(m.in);
      for (size_t r = 0; r < ids.size(); ++r)
        for (size_t i = 0; i < in; ++i) {
          if (ids[r] < 0 || ids[r] >= 53)
            CHECK(std::isnan(got[r * in + i]));
          else
            CHECK(got[r * in + i] == weights[static_cast<size_t>(ids[r]) * in + i]);
        }
    }
  }
}
