// Products with codes that training reads, against those with the numbers that they stand for.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/convert.h"
#include "base/rng.h"
#include "base/two_level.h"
#include "ops/linear_gradient.h"
#include "ops/quantizing.h"
#include "tensor/arena.h"

using namespace tandem;

namespace {

using Spec = ops::PackedWeights::Spec;

std::vector<float> some_values(int64_t n, uint32_t seed) {
  PhiloxStream stream(11, seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(2 * stream.uniform() - 1);
  return x;
}

/// Weights in codes, and the same in numbers.
struct Pair {
  Spec spec;
  std::vector<float> numbers, bias;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights codes;

  explicit Pair(Spec s) : spec(std::move(s)), numbers(), bias() {
    spec.trainable = true;
    spec.bias = true;
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    CHECK(plan.items().size() == 2);  // codes and bias: no packed copy
    arena = std::make_unique<Arena>(plan);
    bias = some_values(spec.out, 3);
    std::vector<std::byte> memory(ops::PackedWeights::staging_bytes(spec));
    ops::Staging staging({}, memory.data(), memory.size());
    const std::vector<float> all = some_values(spec.out * spec.in, 1);
    numbers.resize(all.size());
    codes.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          const WeightFormat format = spec.format_at(begin);
          const float* const from = all.data() + begin * spec.in;
          float* const as = numbers.data() + begin * spec.in;
          if (format.scale == ScaleType::two_level || format.code == Code::i5) {
            put_blocks(static_cast<uint8_t*>(to), format, end - begin, begin);
            ops::dequantize(as, DType::f32, to, format, end - begin, spec.in);
          } else if (is_coded(format)) {
            ops::quantize(to, format, from, end - begin, spec.in, false);
            ops::dequantize(as, DType::f32, to, format, end - begin, spec.in);
          } else {
            std::copy_n(from, (end - begin) * spec.in, as);
            std::copy_n(from, (end - begin) * spec.in, static_cast<float*>(to));
          }
        },
        bias, staging);
  }

  /// Writes rows of blocks with any codes and integers, and weights of at most 1.
  void put_blocks(uint8_t* to, const WeightFormat& format, int64_t n, int64_t first) const {
    const auto size = static_cast<int64_t>(row_bytes(format, cut_unit(format, spec.in)));
    const int factors = format.scale == ScaleType::two_level
                            ? TwoLevelBlock{format.code, format.zero, format.group}.factors_at()
                            : CodeBits{format.code, format.group}.bytes();
    PhiloxStream stream(12, static_cast<uint32_t>(first));
    const f16 factor = to_f16(0x1p-12f);
    const auto bytes = static_cast<int64_t>(row_bytes(format, spec.in)) * n;
    for (int64_t at = 0; at < bytes; at += size) {
      for (int i = 0; i < factors; ++i) to[at + i] = static_cast<uint8_t>(stream.below(256));
      for (int i = factors; i < size; i += 2)
        std::memcpy(to + at + i, &factor.bits, sizeof factor.bits);
    }
  }

  void check(int64_t rows) {
    const int64_t out = spec.out, in = spec.in;
    const std::vector<float> x = some_values(rows * in, 7), dy = some_values(rows * out, 8);
    std::vector<std::byte> workspace(std::max(ops::PackedWeights::workspace_bytes(spec, rows),
                                              ops::input_gradient_workspace_bytes(spec, rows)));
    for (const bool add : {false, true}) {
      const auto accumulate = add ? ops::Accumulate::yes : ops::Accumulate::no;
      std::vector<float> y = some_values(rows * out, 9), dx = some_values(rows * in, 10);
      const std::vector<float> y_before = y, dx_before = dx;
      const auto tensor = [](const std::vector<float>& v, int64_t n, int64_t m) {
        return Tensor(const_cast<float*>(v.data()), DType::f32, {n, m});
      };
      ops::linear(tensor(y, rows, out), tensor(x, rows, in), codes, accumulate, workspace, {});
      ops::linear_input_gradient(tensor(dx, rows, in), tensor(dy, rows, out), codes, accumulate,
                                 workspace);
      double worst = 0;
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> sums(static_cast<size_t>(in));
        for (int64_t o = 0; o < out; ++o) {
          double sum = bias[static_cast<size_t>(o)];
          for (int64_t k = 0; k < in; ++k) {
            const double w = numbers[static_cast<size_t>(o * in + k)];
            sum += w * x[static_cast<size_t>(r * in + k)];
            sums[static_cast<size_t>(k)] += w * dy[static_cast<size_t>(r * out + o)];
          }
          const auto at = static_cast<size_t>(r * out + o);
          worst = std::max(worst, std::abs(y[at] - sum - (add ? y_before[at] : 0)));
        }
        for (int64_t k = 0; k < in; ++k) {
          const auto at = static_cast<size_t>(r * in + k);
          worst = std::max(
              worst, std::abs(dx[at] - sums[static_cast<size_t>(k)] - (add ? dx_before[at] : 0)));
        }
      }
      // Sums of some thousand products of numbers up to 1.
      CHECK(worst < 1e-6 * std::sqrt(static_cast<double>(out + in)) * 10);
    }
  }
};

const WeightFormat kFour(Code::i4, 32, ScaleType::f16, Zero::integer),
    kEight(Code::i8, 96, ScaleType::f16, Zero::none), kRow(Code::i4, 0, ScaleType::f16, Zero::none),
    kFp8(Code::fp8, 0, ScaleType::f32, Zero::none),
    kFive(Code::i5, 32, ScaleType::f16, Zero::minimum),
    kBlocks(Code::i4, 32, ScaleType::two_level, Zero::minimum);

}  // namespace

TEST_SUITE("ops/frozen_codes") {
  TEST_CASE("products and input gradients are those of the numbers, in one tile or several") {
    for (const WeightFormat& format : {kFour, kEight, kRow, kFp8, kFive, kBlocks})
      for (const auto& [out, in] :
           {std::pair<int64_t, int64_t>{70, 100}, {4200, 520}, {520, 4200}}) {
        CAPTURE(format_name(format));
        CAPTURE(out);
        Pair({.name = "weights/w", .out = out, .in = in, .stored = format, .input = DType::f32})
            .check(out == 70 ? 5 : 2);
      }
  }

  TEST_CASE("rows of several formats, numbers among them") {
    Spec spec{.name = "weights/w", .out = 700, .in = 4000, .stored = kFour, .input = DType::f32};
    spec.stacked = {{300, kFour}, {80, DType::f32}, {120, kEight}, {200, kFp8}};
    Pair(spec).check(3);
  }

  TEST_CASE("a part that is held begins as the codes' numbers, and is the only one to be written") {
    for (const WeightPart part : {WeightPart::rows, WeightPart::columns})
      for (const WeightFormat& format : {kFour, kFp8}) {
        Pair pair(
            {.name = "weights/w", .out = 700, .in = 4000, .stored = format, .input = DType::f32});
        const int64_t most = part == WeightPart::rows ? 700 : 4000;
        const std::vector<int32_t> index = {0, 31, 32, static_cast<int32_t>(most / 2 + 3),
                                            static_cast<int32_t>(most - 1)};
        const auto n = static_cast<int64_t>(index.size());
        const auto values_at = [&](auto&& visit) {
          for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < (part == WeightPart::rows ? 4000 : 700); ++j)
              part == WeightPart::rows
                  ? visit(i * 4000 + j, index[static_cast<size_t>(i)] * int64_t{4000} + j)
                  : visit(j * n + i, j * 4000 + index[static_cast<size_t>(i)]);
        };
        std::vector<float> held(static_cast<size_t>(n * (part == WeightPart::rows ? 4000 : 700))),
            read(held.size());
        const auto check_read = [&] {
          ops::read_part(read, pair.codes, part, index);
          values_at([&](int64_t value, int64_t number) {
            REQUIRE(read[static_cast<size_t>(value)] == pair.numbers[static_cast<size_t>(number)]);
          });
        };
        check_read();
        CHECK_THROWS_AS(ops::write_part(pair.codes, part, index, held), Error);
        ops::hold_part(pair.codes, part, index, held.data());
        check_read();
        const std::vector<float> other = some_values(static_cast<int64_t>(held.size()), 21);
        ops::write_part(pair.codes, part, index, other);
        values_at([&](int64_t value, int64_t number) {
          pair.numbers[static_cast<size_t>(number)] = other[static_cast<size_t>(value)];
        });
        check_read();
        pair.check(2);
      }
  }
}
