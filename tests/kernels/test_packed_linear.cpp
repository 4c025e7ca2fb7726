#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/linear/decode_linear.h"
#include "kernels/packed_linear_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

// From less than a vector to several blocks of inputs; outputs that end anywhere in a panel.
constexpr LinearShape kShapes[] = {{1, 1},     {5, 3},     {32, 64},   {250, 48},  {513, 33},
                                   {96, 1000}, {40, 2048}, {67, 2049}, {33, 6000}, {1500, 130}};

std::vector<Isa> isas_with_a_body() {
  std::vector<Isa> isas = usable_isas();
  std::erase_if(isas, [](Isa isa) { return isa > Isa::avx512; });
  return isas;
}

std::vector<int> first_rows(int n) {
  std::vector<int> rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

/// Sums of these are exact in f32, in any order.
auto small_integers(uint32_t seed) {
  return [rng = PhiloxStream(42, seed)]() mutable {
    return static_cast<float>(static_cast<int>(rng.below(17)) - 8);
  };
}

auto fractions(uint32_t seed) {
  return [rng = PhiloxStream(42, seed)]() mutable { return random_float(rng, 1.0f); };
}

}  // namespace

TEST_SUITE("kernels/packed_linear") {
  TEST_CASE("equals the reference where every sum is exact") {
    struct Form {
      bool bias, accumulate;
      DType y_type;
    };
    for (const LinearShape shape : kShapes)
      for (const DType type : {DType::f32, DType::bf16})
        for (const Form form : {Form{false, false, DType::f32},
                                {true, true, DType::f32},
                                {true, false, DType::bf16}}) {
          LinearCase c(shape, type, 31, form.bias, form.accumulate, small_integers(1));
          c.y_type = form.y_type;
          ActBuffer want = c.reference();
          for (const Isa isa : isas_with_a_body()) {
            const PackedLinearKernel& kernel = *cpu_table(isa).packed_linear;
            const auto panels = c.pack(kernel);
            for (const int rows : {1, 2, 3, kernel.sliver_rows, kernel.sliver_rows + 1, 31}) {
              CAPTURE(isa_name(isa));
              CAPTURE(dtype_name(type));
              CAPTURE(dtype_name(c.y_type));
              CAPTURE(shape.out);
              CAPTURE(shape.in);
              CAPTURE(rows);
              CAPTURE(form.bias);
              ActBuffer got = c.run(kernel, panels, first_rows(rows), 2);
              for (int r = 0; r < rows; ++r) REQUIRE(c.same(got, r, want, r));
            }
          }
        }
  }

  TEST_CASE("agrees with the reference on fractions") {
    for (const LinearShape shape : kShapes)
      for (const DType type : {DType::f32, DType::bf16}) {
        LinearCase c(shape, type, 17, true, true, fractions(2));
        ActBuffer want = c.reference();
        // Products are uniform on [-1, 1) squared, of variance 1/9. Partial sums grow to the root
        // of in/9, and roundings to their spacing walk as far as the root of their number: six of
        // that, two additions for bias and y before, and scalar's second rounding.
        const double in = shape.in, sum = std::sqrt(in / 9 + 1);
        const double tolerance = 2 * 6 * spacing(DType::f32) * sum * std::sqrt(in + 2);
        for (const Isa isa : isas_with_a_body()) {
          const PackedLinearKernel& kernel = *cpu_table(isa).packed_linear;
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(type));
          CAPTURE(shape.out);
          CAPTURE(shape.in);
          ActBuffer got = c.run(kernel, c.pack(kernel), first_rows(17), 2);
          REQUIRE_CLOSE(got, want, [&](size_t) { return tolerance; });
        }
      }
  }

  TEST_CASE("a row's bits depend on nothing but the row: 1 to 64 rows, every place, any company") {
    // The last is shaped as the last layer of a language model; scalar only tells its likeness.
    for (const LinearShape shape :
         {LinearShape{5, 3}, {250, 48}, {513, 33}, {67, 2049}, {2000, 96}})
      for (const DType type : {DType::f32, DType::bf16}) {
        const bool bias = shape.in % 2 == 0;
        LinearCase c(shape, type, 64, bias, !bias, fractions(3));
        for (const Isa isa : isas_with_a_body()) {
          const PackedLinearKernel& kernel = *cpu_table(isa).packed_linear;
          const auto panels = c.pack(kernel);
          std::vector<ActBuffer> alone;
          for (int r = 0; r < 64; ++r) alone.push_back(c.run(kernel, panels, {r}, 1));
          std::vector<int> order = first_rows(64);
          PhiloxStream rng(7);
          for (int rows = 1; rows <= 64; rows += isa == Isa::scalar ? 9 : 1) {
            for (size_t i = 63; i > 0; --i)
              std::swap(order[i], order[rng.below(static_cast<uint32_t>(i + 1))]);
            for (const int threads : {1, 5}) {
              CAPTURE(isa_name(isa));
              CAPTURE(dtype_name(type));
              CAPTURE(shape.out);
              CAPTURE(shape.in);
              CAPTURE(rows);
              CAPTURE(threads);
              const std::vector<int> picked(order.begin(), order.begin() + rows);
              ActBuffer y = c.run(kernel, panels, picked, threads);
              for (int i = 0; i < rows; ++i) {
                const auto row = static_cast<size_t>(picked[static_cast<size_t>(i)]);
                REQUIRE(c.same(y, i, alone[row], 0));
              }
            }
          }
        }
      }
  }

  TEST_CASE("rows of several passes have the bits they have alone") {
    // 96 rows of 11,000 inputs are packed together.
    for (const DType type : {DType::f32, DType::bf16}) {
      LinearCase c({20, 11000}, type, 211, true, false, fractions(4));
      for (const Isa isa : isas_with_a_body()) {
        if (isa == Isa::scalar) continue;
        const PackedLinearKernel& kernel = *cpu_table(isa).packed_linear;
        const auto panels = c.pack(kernel);
        for (const int threads : {1, 3, 200}) {
          CAPTURE(isa_name(isa));
          CAPTURE(dtype_name(type));
          CAPTURE(threads);
          ActBuffer all = c.run(kernel, panels, first_rows(211), threads);
          for (const int r : {0, 69, 70, 71, 140, 141, 210}) {
            ActBuffer one = c.run(kernel, panels, {r}, 1);
            REQUIRE(c.same(all, r, one, 0));
          }
        }
      }
    }
  }

  TEST_CASE("workspace does not shrink with rows or threads") {
    const PackedLinearKernel& kernel = *cpu_table().packed_linear;
    for (const int64_t in : {1, 300, 2048, 5000, 200000})
      for (const DType type : {DType::f32, DType::bf16}) {
        size_t before = 0;
        for (int64_t rows = 1; rows < 9000; rows += 1 + rows / 3) {
          const size_t bytes = packed_linear_workspace_bytes(kernel, rows, in, type, 2);
          CHECK(bytes >= before);
          CHECK(packed_linear_workspace_bytes(kernel, rows, in, type, 3) > bytes);
          before = bytes;
        }
      }
  }

  TEST_CASE("passes NaN and infinity on, to its own row alone") {
    for (const DType type : {DType::f32, DType::bf16})
      for (const Isa isa : isas_with_a_body()) {
        LinearCase c({9, 20}, type, 8, false, false, small_integers(5));
        const PackedLinearKernel& kernel = *cpu_table(isa).packed_linear;
        const auto panels = c.pack(kernel);
        ActBuffer before = c.run(kernel, panels, first_rows(8), 1);
        c.x.set(3 * 20 + 19, NAN);
        c.x.set(5 * 20, INFINITY);
        ActBuffer after = c.run(kernel, panels, first_rows(8), 1);
        for (const int r : {0, 1, 2, 4, 6, 7}) CHECK(c.same(before, r, after, r));
        for (size_t o = 0; o < 9; ++o) {
          CHECK(std::isnan(after.get(3 * 9 + o)));
          const float w = c.w.get(o * 20), y = after.get(5 * 9 + o);
          CHECK((w == 0 ? std::isnan(y) : y == (w > 0 ? INFINITY : -INFINITY)));
        }
      }
  }
}

TEST_SUITE("kernels/decode_linear") {
  /// The product of the first rows of a case in bf16, all items or one at a time.
  ActBuffer decode(LinearCase & c, const CpuTable& table, int first, int rows, bool by_items) {
    const auto in = static_cast<size_t>(c.shape.in), out = static_cast<size_t>(c.shape.out);
    const int panels = (c.shape.out + kPairPanel - 1) / kPairPanel;
    std::vector<bf16> packed(
        static_cast<size_t>(panels * pair_panel_bytes(c.shape.in)) / sizeof(bf16), bf16{0x7fc0});
    pack_pairs({packed.data(), static_cast<const bf16*>(c.w.data()), c.shape.out, c.shape.in},
               {0, panels});
    // Not a number after the last row: an odd input must not be paired with it.
    std::vector<bf16> x(static_cast<size_t>(rows) * in + 1, bf16{0x7fc0});
    std::memcpy(x.data(), static_cast<const bf16*>(c.x.data()) + static_cast<size_t>(first) * in,
                static_cast<size_t>(rows) * in * sizeof(bf16));
    ActBuffer y(c.y_type, static_cast<size_t>(rows) * out);
    for (size_t i = 0; i < y.size(); ++i)
      y.set(i, c.accumulate ? c.start.f32[static_cast<size_t>(first) * out + i] : NAN);
    const DecodeLinearParams p{.y = y.data(),
                               .x = x.data(),
                               .w = packed.data(),
                               .bias = c.bias ? c.b.data() : nullptr,
                               .rows = rows,
                               .out = c.shape.out,
                               .in = c.shape.in,
                               .y_type = c.y_type,
                               .accumulate = c.accumulate};
    const int items = (c.shape.out + kPairItem - 1) / kPairItem;
    for (int i = 0; i < items; i += by_items ? 1 : items)
      table.decode_linear(p, {i, by_items ? i + 1 : items});
    return y;
  }

  TEST_CASE("equals the reference where sums are exact, and gives a row its own bits") {
    for (const Isa isa : usable_isas()) {
      const CpuTable& table = cpu_table(isa);
      CHECK((table.decode_linear != nullptr) == (isa >= Isa::avx512_bf16));
      if (table.decode_linear == nullptr) continue;
      for (const LinearShape shape : kShapes)
        for (const bool accumulate : {false, true})
          for (const DType y_type : {DType::f32, DType::bf16}) {
            if (accumulate && y_type == DType::bf16) continue;
            CAPTURE(isa_name(isa));
            CAPTURE(shape.out);
            CAPTURE(shape.in);
            CAPTURE(accumulate);
            LinearCase exact(shape, DType::bf16, kDecodeRows, accumulate, accumulate,
                             small_integers(5));
            LinearCase any(shape, DType::bf16, kDecodeRows, accumulate, accumulate, fractions(6));
            exact.y_type = any.y_type = y_type;
            ActBuffer want = exact.reference();
            for (int rows = 1; rows <= kDecodeRows; ++rows) {
              CAPTURE(rows);
              ActBuffer got = decode(exact, table, 0, rows, rows % 2 == 0);
              ActBuffer all = decode(any, table, 0, rows, rows % 2 == 1);
              for (int r = 0; r < rows; ++r) {
                REQUIRE(exact.same(got, r, want, r));
                ActBuffer alone = decode(any, table, r, 1, false);
                REQUIRE(any.same(all, r, alone, 0));
              }
            }
          }
    }
  }

  TEST_CASE("agrees with the reference on fractions") {
    for (const Isa isa : usable_isas()) {
      const CpuTable& table = cpu_table(isa);
      if (table.decode_linear == nullptr) continue;
      for (const LinearShape shape : kShapes) {
        CAPTURE(shape.out);
        CAPTURE(shape.in);
        LinearCase c(shape, DType::bf16, kDecodeRows, true, true, fractions(7));
        ActBuffer want = c.reference();
        // As of packed_linear above: the walk of roundings of partial sums.
        const double in = shape.in;
        const double tolerance =
            2 * 6 * spacing(DType::f32) * std::sqrt(in / 9 + 1) * std::sqrt(in + 2);
        ActBuffer got = decode(c, table, 0, kDecodeRows, false);
        REQUIRE_CLOSE(got, want, [&](size_t) { return tolerance; });
      }
    }
  }
}
