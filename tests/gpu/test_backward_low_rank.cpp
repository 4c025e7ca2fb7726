// Operations of low-rank adapters: CUDA bodies against the CPU's.
#include <cstring>

#include "gpu/device_buffer.h"
#include "kernels/elementwise_case.h"
#include "ops/low_rank.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr double kF32 = 0x1p-23;
constexpr int kRows = 3;
constexpr int kWidths[] = {1, 7, 8, 15, 16, 17, 64, 127, 128, 129, 300, 1009, 2048, 4096};

ActBuffer random_numbers(DType type, size_t n, size_t offset, uint32_t seed) {
  ActBuffer b(type, n, offset);
  PhiloxStream stream(37, seed);
  fill(b, stream, 2);
  return b;
}

ActBuffer random_floats(int n, size_t offset, uint32_t seed) {
  return random_numbers(DType::f32, static_cast<size_t>(n), offset, seed);
}

void launched(const char* operation) { cuda::launched(operation, queue().stream()); }

void require_bits(const DeviceBuffer& got, ActBuffer& want) {
  const auto bytes = got.vector<unsigned char>();
  REQUIRE(std::memcmp(bytes.data(), want.data(), bytes.size()) == 0);
}

/// Columns [first, first + n) of rows of `width`.
struct Columns {
  int first, n, width;
  bool contain(size_t i) const {
    const int column = static_cast<int>(i % static_cast<size_t>(width));
    return column >= first && column < first + n;
  }
  size_t size(int rows) const { return static_cast<size_t>(rows) * static_cast<size_t>(width); }
};

/// All columns of a matrix, and parts of one that wide accesses suit or not.
template <class Check>
void over_columns(const Check& check) {
  for (const DType act : kActs)
    for (const int n : kWidths)
      for (const Columns& columns : {Columns{0, n, n}, {8, n, n + 16}, {3, n, n + 5}})
        for (const size_t offset : {0u, 1u}) {
          CAPTURE(dtype_name(act));
          CAPTURE(n);
          CAPTURE(columns.width);
          CAPTURE(offset);
          check(act, columns, offset);
        }
}

}  // namespace

TEST_SUITE("gpu/kernels/low_rank") {
  TEST_CASE("dropout has the CPU's bits") {
    for (const DType act : kActs)
      for (const int width : kWidths)
        for (const size_t offset : {0u, 1u})
          for (const bool add : {false, true})
            for (const bool in_place : {false, true}) {
              CAPTURE(dtype_name(act));
              CAPTURE(width);
              CAPTURE(offset);
              CAPTURE(add);
              CAPTURE(in_place);
              const auto n = static_cast<size_t>(kRows * width);
              ActBuffer in = random_numbers(act, n, offset, 1);
              ActBuffer want = in_place ? in : random_numbers(act, n, offset, 2);
              const DeviceBuffer of_in = on_device(in), of_out = on_device(want);
              DropoutParams p{.out = want.data(),
                              .in = in_place ? want.data() : in.data(),
                              .n_rows = kRows,
                              .width = width,
                              .act = act,
                              .add = add,
                              .threshold = 20000,
                              .scale = 1.5f,
                              .seed = 0x1234567890abcdefu,
                              .step = 7,
                              .place = 0x10005};
              cpu_table().dropout(p, {0, kRows});
              p.out = of_out.raw();
              p.in = in_place ? of_out.raw() : of_in.raw();
              cuda_table().dropout(p, queue().stream());
              launched("dropout");
              require_bits(of_out, want);
            }
  }

  TEST_CASE("magnitude_scale agrees with the reference, and leaves other columns") {
    over_columns([](DType act, const Columns& columns, size_t offset) {
      for (const DType in_type : {DType::f32, act})
        for (const bool with_bias : {false, true})
          for (const bool with_sum : {false, true}) {
            CAPTURE(dtype_name(in_type));
            CAPTURE(with_bias);
            CAPTURE(with_sum);
            const size_t size = columns.size(kRows);
            ActBuffer in = random_numbers(in_type, size, offset, 1),
                      want = random_numbers(act, size, offset, 2), got = want,
                      scale = random_floats(columns.n, offset, 3),
                      bias = random_floats(columns.n, offset, 4),
                      sum = random_numbers(DType::f32, size, offset, 5), got_sum = sum;
            const DeviceBuffer of_in = on_device(in), of_out = on_device(want),
                               of_scale = on_device(scale), of_bias = on_device(bias),
                               of_sum = on_device(sum);
            MagnitudeScaleParams p{.out = want.data(),
                                   .in = in.data(),
                                   .n_rows = kRows,
                                   .width = columns.width,
                                   .first = columns.first,
                                   .n = columns.n,
                                   .scale = scale.f32.data(),
                                   .bias = with_bias ? bias.f32.data() : nullptr,
                                   .sum = with_sum ? sum.f32.data() : nullptr,
                                   .act = act,
                                   .in_type = in_type};
            magnitude_scale_ref(p, {0, kRows});
            p.out = of_out.raw();
            p.in = of_in.raw();
            p.scale = of_scale.as<float>();
            if (with_bias) p.bias = of_bias.as<float>();
            if (with_sum) p.sum = of_sum.as<float>();
            cuda_table().magnitude_scale(p, queue().stream());
            launched("magnitude_scale");
            read_back(of_out, got);
            read_back(of_sum, got_sum);
            // |scale in| <= 4, |(1 - scale) bias| <= 6.
            REQUIRE_CLOSE(got, want, ([&](size_t i) {
                            return columns.contain(i) ? 10 * (spacing(act) / 2 + 4 * kF32) : 0;
                          }));
            REQUIRE_CLOSE(got_sum, sum, ([&](size_t i) {
                            return with_sum && columns.contain(i) ? 12 * 5 * kF32 : 0;
                          }));
          }
    });
  }

  TEST_CASE("magnitude_scale in place leaves the bits where the scale is 1") {
    constexpr int kManyRows = 300;
    over_columns([](DType act, const Columns& columns, size_t offset) {
      ActBuffer y = random_numbers(act, columns.size(kManyRows), offset, 6),
                scale = random_floats(columns.n, offset, 7),
                bias = random_floats(columns.n, offset, 8);
      for (size_t c = 0; c < scale.size(); ++c) scale.set(c, 1);
      const DeviceBuffer of_y = on_device(y), of_scale = on_device(scale),
                         of_bias = on_device(bias);
      cuda_table().magnitude_scale({.out = of_y.raw(),
                                    .in = of_y.raw(),
                                    .n_rows = kManyRows,
                                    .width = columns.width,
                                    .first = columns.first,
                                    .n = columns.n,
                                    .scale = of_scale.as<float>(),
                                    .bias = of_bias.as<float>(),
                                    .act = act,
                                    .in_type = act},
                                   queue().stream());
      launched("magnitude_scale");
      require_bits(of_y, y);
    });
  }

  TEST_CASE("magnitude_gradient agrees with the reference, which has none where it is 0") {
    over_columns([](DType act, const Columns& columns, size_t offset) {
      for (const int rows : {1, 15, 100})
        for (const bool with_bias : {false, true}) {
          CAPTURE(rows);
          CAPTURE(with_bias);
          const size_t size = columns.size(rows);
          ActBuffer dy = random_numbers(act, size, offset, 9),
                    y = random_numbers(act, size, offset, 10),
                    magnitude = random_floats(columns.n, offset, 11),
                    bias = random_floats(columns.n, offset, 12),
                    want = random_floats(columns.n, offset, 13), got = want;
          for (size_t c = 0; c < magnitude.size(); ++c)
            magnitude.set(c, c % 5 == 0 ? 0 : magnitude.get(c) + (magnitude.get(c) < 0 ? -1 : 1));
          const DeviceBuffer of_dy = on_device(dy), of_y = on_device(y),
                             of_magnitude = on_device(magnitude), of_bias = on_device(bias),
                             of_sums = on_device(want);
          MagnitudeGradientParams p{.sums = want.f32.data(),
                                    .dy = dy.data(),
                                    .y = y.data(),
                                    .magnitude = magnitude.f32.data(),
                                    .n_rows = rows,
                                    .width = columns.width,
                                    .first = columns.first,
                                    .n = columns.n,
                                    .bias = with_bias ? bias.f32.data() : nullptr,
                                    .act = act};
          magnitude_gradient_ref(p, {0, columns.n});
          p.sums = of_sums.as<float>();
          p.dy = of_dy.raw();
          p.y = of_y.raw();
          p.magnitude = of_magnitude.as<float>();
          if (with_bias) p.bias = of_bias.as<float>();
          cuda_table().magnitude_gradient(p, queue().stream());
          launched("magnitude_gradient");
          read_back(of_sums, got);
          // Terms are at most 2 * 4.
          REQUIRE_CLOSE(got, want, ([&](size_t c) {
                          return c % 5 == 0 ? 0 : (rows + 4) * kF32 * (2 + 8 * rows);
                        }));
        }
    });
  }

  TEST_CASE("squares of rows and their roots are the CPU's, give or take a rounding") {
    constexpr int kMany = 19;
    for (const DType act : kActs)
      for (const int in : kWidths)
        for (const size_t offset : {0u, 1u})
          for (const bool root : {false, true}) {
            CAPTURE(dtype_name(act));
            CAPTURE(in);
            CAPTURE(offset);
            CAPTURE(root);
            ActBuffer w = random_numbers(act, static_cast<size_t>(kMany * in), offset, 14),
                      want = random_floats(kMany, offset, 15), got = want;
            for (size_t i = 0; i < static_cast<size_t>(in); ++i)
              w.set(4 * static_cast<size_t>(in) + i, 0);
            const DeviceBuffer of_w = on_device(w), of_squares = on_device(want);
            RowSquaresParams p{.squares = want.f32.data(),
                               .weights = w.data(),
                               .rows = kMany,
                               .in = in,
                               .act = act,
                               .root = root};
            row_squares_cpu(p, {0, kMany});
            p.squares = of_squares.as<float>();
            p.weights = of_w.raw();
            cuda_table().row_squares(p, queue().stream());
            launched("row_squares");
            read_back(of_squares, got);
            CHECK(got.get(4) == (root ? kLeastWeightNorm : 0.0f));
            REQUIRE_CLOSE(got, want, ([&](size_t r) { return kF32 * double{want.get(r)}; }));
          }
  }

  TEST_CASE("weight_norms are the CPU's, give or take their roundings") {
    for (const DType act : kActs)
      for (const int rank : {1, 4, 7, 31, 32, 33, 64, 100})
        for (const int rows : {1, 31, 32, 65}) {
          CAPTURE(dtype_name(act));
          CAPTURE(rank);
          CAPTURE(rows);
          const auto n = static_cast<size_t>(rows * rank);
          ActBuffer squares = random_floats(rows, 0, 16), wa = random_numbers(DType::f32, n, 0, 17),
                    aa = random_floats(rank * rank, 0, 18), b = random_numbers(act, n, 0, 19),
                    magnitude = random_floats(rows, 0, 20), want = random_floats(rows, 0, 21),
                    got = want;
          // More than the change by B A, at most 12 rank + 18 rank^2: nothing cancels.
          for (size_t r = 0; r < squares.size(); ++r)
            squares.set(r, squares.get(r) + 100.0f * static_cast<float>(rank * rank));
          squares.set(0, 0);  // a row of zeros
          for (size_t i = 0; i < static_cast<size_t>(rank); ++i) b.set(i, 0);
          const DeviceBuffer of_scale = on_device(want), of_squares = on_device(squares),
                             of_wa = on_device(wa), of_aa = on_device(aa), of_b = on_device(b),
                             of_magnitude = on_device(magnitude);
          WeightNormsParams p{.scale = want.f32.data(),
                              .squares = squares.f32.data(),
                              .wa = wa.f32.data(),
                              .aa = aa.f32.data(),
                              .b = b.data(),
                              .magnitude = magnitude.f32.data(),
                              .gamma = 1.5f,
                              .rows = rows,
                              .rank = rank,
                              .act = act};
          weight_norms_cpu(p, {0, rows});
          p.scale = of_scale.as<float>();
          p.squares = of_squares.as<float>();
          p.wa = of_wa.as<float>();
          p.aa = of_aa.as<float>();
          p.b = of_b.raw();
          p.magnitude = of_magnitude.as<float>();
          cuda_table().weight_norms(p, queue().stream());
          launched("weight_norms");
          read_back(of_scale, got);
          CHECK(got.get(0) == magnitude.get(0) / kLeastWeightNorm);
          // Of the norm and of the quotient.
          REQUIRE_CLOSE(got, want,
                        ([&](size_t r) { return 2 * kF32 * std::abs(double{want.get(r)}); }));
        }
  }

  TEST_CASE("scales are exactly 1 while B is 0 and magnitudes are the first ones") {
    constexpr int kMany = 37, kIn = 1009, kRank = 5;
    constexpr Device kGpu{Device::Kind::cuda, 0};
    for (const DType act : kActs) {
      CAPTURE(dtype_name(act));
      ActBuffer w = random_numbers(act, kMany * kIn, 0, 22), b(act, kMany * kRank),
                wa = random_floats(kMany * kRank, 0, 23), aa = random_floats(kRank * kRank, 0, 24),
                none(DType::f32, kMany), scale(DType::f32, kMany);
      for (size_t i = 0; i < kIn; ++i) w.set(4 * kIn + i, 0);
      const DeviceBuffer of_w = on_device(w), of_b = on_device(b), of_wa = on_device(wa),
                         of_aa = on_device(aa), squares = on_device(none),
                         magnitude = on_device(none), of_scale = on_device(scale);
      const Tensor weights(of_w.raw(), act, {kMany, kIn}, kGpu);
      const Stream stream = queue().stream();
      ops::row_squares(squares.as<float>(), weights, stream);
      ops::initial_magnitudes(magnitude.as<float>(), weights, stream);
      ops::weight_norms({.scale = of_scale.as<float>(),
                         .squares = squares.as<float>(),
                         .wa = of_wa.as<float>(),
                         .aa = of_aa.as<float>(),
                         .b = Tensor(of_b.raw(), act, {kMany, kRank}, kGpu),
                         .magnitude = magnitude.as<float>(),
                         .gamma = 1.5f},
                        stream);
      read_back(of_scale, scale);
      for (size_t r = 0; r < kMany; ++r) REQUIRE(scale.get(r) == 1.0f);
    }
  }
}
