#include <algorithm>
#include <cmath>

#include "kernels/coded_case.h"
#include "kernels/linear/packed_linear_cpu.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// The largest distance, in parts of the largest number wanted.
double worst_share(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0, most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(double{got[i]} - want[i]);
    worst = d <= worst ? worst : d;  // NaN is worst
    most = std::max(most, std::abs(double{want[i]}));
  }
  return worst / most;
}

std::vector<Isa> vector_isas() {
  std::vector<Isa> isas = usable_isas();
  std::erase(isas, Isa::scalar);
  return isas;
}

}  // namespace

TEST_SUITE("kernels/quantized_linear") {
  TEST_CASE("agrees with the reference in every format, with any number of inputs and outputs") {
    for (const int in : {64, 100, 576, 31})
      for (const CodedMatrix& m : coded_formats(in))
        for (const DType type : {DType::f32, DType::bf16})
          for (const int rows : {1, 29}) {
            CodedCase c(m, 53, rows, type);
            CAPTURE(format_name(format_of(m)));
            CAPTURE(in);
            CAPTURE(rows);
            const bool add = rows > 1;
            const std::vector<float> want = c.reference(add);
            // Each of in / 16 groups rounds three times, and the sums of at most 36 groups walk.
            for (const Isa isa : usable_isas()) {
              CAPTURE(isa_name(isa));
              CHECK(worst_share(c.run(isa, 2, add), want) <= 40 * 0x1p-23);
            }
          }
  }

  TEST_CASE("all vector instruction sets give the same bits") {
    // Few rows and inputs, and those that tiles take in several steps.
    for (const auto& [in, rows] : {std::pair(320, 13), std::pair(320, 2), std::pair(1100, 61)})
      for (const CodedMatrix& m : coded_formats(in)) {
        CodedCase c(m, 72, rows);
        CAPTURE(format_name(format_of(m)));
        CAPTURE(rows);
        const std::vector<Isa> isas = vector_isas();
        const std::vector<float> first = c.run(isas.front());
        for (const Isa isa : isas) CHECK(c.run(isa) == first);
      }
  }

  TEST_CASE("a row's bits depend on nothing but the row: any company, any threads") {
    for (const CodedMatrix& m : coded_formats(96))
      for (const Isa isa : vector_isas()) {
        CodedCase all(m, 200, 131);
        CAPTURE(format_name(format_of(m)));
        CAPTURE(isa_name(isa));
        const std::vector<float> together = all.run(isa, 3);
        CHECK(all.run(isa, 1) == together);
        for (const int row : {0, 7, 64, 130}) {
          const int n = row == 7 ? 2 : 1;
          CodedCase few(m, 200, n);
          few.codes = all.codes;
          pack_codes({few.panels.data(), few.codes.data(), m, few.out}, {0, few.n_panels()});
          for (int i = 0; i < n * m.in; ++i)
            few.x.set(static_cast<size_t>(i), all.x.get(static_cast<size_t>(row * m.in + i)));
          const std::vector<float> apart = few.run(isa);
          CHECK(std::equal(apart.begin(), apart.end(), together.begin() + row * all.out));
        }
      }
  }

  TEST_CASE("rows of several passes have the bits of a single pass") {
    const CodedMatrix m{Code::i4, ScaleType::f16, Zero::none, 64, 49152};  // 96 rows a pass
    for (const Isa isa : vector_isas()) {
      CodedCase c(m, 18, 100);
      std::vector<float> y = c.run(isa, 2);
      c.rows = 3;
      const std::vector<float> three = c.run(isa);
      CHECK(std::equal(three.begin(), three.begin() + 3 * c.out, y.begin()));
    }
  }

  TEST_CASE("a panel has inputs 4 r + j in low halves and 32 + 4 r + j in high ones") {
    const CodedMatrix m{Code::i4, ScaleType::f16, Zero::none, 64, 64};
    CodedCase c(m, kCodePanel, 1);
    const auto* panel = static_cast<const uint8_t*>(c.panels.data());
    const auto nibble = [&](int n, int i) {
      const uint8_t both = c.codes[static_cast<size_t>(n * 34 + i / 2)];  // 32 bytes and a scale
      return i % 2 == 0 ? both & 15 : both >> 4;
    };
    for (int r = 0; r < 8; ++r)
      for (int n = 0; n < kCodePanel; ++n)
        for (int j = 0; j < 4; ++j)
          CHECK(panel[64 * r + 4 * n + j] ==
                (nibble(n, 4 * r + j) | nibble(n, 32 + 4 * r + j) << 4));
  }

  TEST_CASE("a number that is not finite makes its row NaN, and no other") {
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const Isa isa : usable_isas()) {
        CodedCase c({Code::i8, ScaleType::f16, Zero::none, 32, 64}, 20, 3);
        c.x.set(64 + 40, bad);
        const std::vector<float> y = c.run(isa);
        for (int o = 0; o < 20; ++o) {
          CHECK(std::isfinite(y[static_cast<size_t>(o)]));
          CHECK(std::isnan(y[static_cast<size_t>(20 + o)]));
          CHECK(std::isfinite(y[static_cast<size_t>(40 + o)]));
        }
      }
  }

  TEST_CASE("a product of weights widened to f32 has the bits of that of the f32 matrix") {
    for (const int in : {64, 100, 2100})
      for (const CodedMatrix& m : coded_formats(in))
        for (const Isa isa : usable_isas()) {
          if (isa > Isa::avx512) continue;
          CodedCase c(m, 70, in == 100 ? 40 : 3);
          CAPTURE(format_name(format_of(m)));
          CAPTURE(isa_name(isa));
          const PackedLinearKernel& kernel = *cpu_table(isa).packed_linear;
          const auto widen = [&](int panel, float* to) {
            cpu_table(isa).quantized_linear->widen(m, c.panels.data(), {panel, panel + 1}, c.out,
                                                   to);
          };
          std::vector<float> got(c.start.size()), want(c.start.size());
          PackedLinearParams p{.y = got.data(),
                               .x = c.x.data(),
                               .w = nullptr,
                               .bias = c.bias.data(),
                               .rows = c.rows,
                               .out = c.out,
                               .in = in,
                               .y_stride = c.out,
                               .type = DType::f32,
                               .y_type = DType::f32,
                               .accumulate = false};
          Lines workspace(widened_linear_workspace_bytes(kernel, c.rows, in, 2));
          widened_linear_with(kernel, p, widen, workspace.data(), 2);
          const int panels = (c.out + kernel.panel_outputs - 1) / kernel.panel_outputs;
          std::vector<float> widened(static_cast<size_t>(panels * kernel.panel_outputs * in));
          for (int i = 0; i < panels; ++i)
            widen(i, widened.data() + int64_t{i} * kernel.panel_outputs * in);
          p.y = want.data();
          p.w = widened.data();
          Lines packed(packed_linear_workspace_bytes(kernel, c.rows, in, DType::f32, 2));
          packed_linear_with(kernel, p, packed.data(), 2);
          CHECK(got == want);
          // A single input shows its weight.
          std::vector<float> one(c.x.size(), 0.0f), y(c.start.size()), ref(c.start.size());
          one[static_cast<size_t>(in / 2)] = 127;
          c.x = ActBuffer(DType::f32, one.size());
          for (size_t i = 0; i < one.size(); ++i) c.x.set(i, one[i]);
          p.x = c.x.data();
          p.bias = nullptr;
          p.y = y.data();
          widened_linear_with(kernel, p, widen, workspace.data(), 1);
          QuantizedLinearParams q = c.params(ref.data(), false);
          q.w = c.codes.data();
          quantized_linear_ref(q, {0, 1});
          for (int o = 0; o < c.out; ++o)
            CHECK(y[static_cast<size_t>(o)] ==
                  doctest::Approx(ref[static_cast<size_t>(o)]).epsilon(2e-7));
        }
  }
}
