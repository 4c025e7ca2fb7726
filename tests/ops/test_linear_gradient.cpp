#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "ops/linear_gradient.h"
#include "worst.h"

using namespace tandem;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16};

/// Numbers of a dtype that are also there in double.
struct Matrix {
  int64_t rows, cols;
  DType type;
  std::vector<float> wide;
  std::vector<bf16> half;

  Matrix(int64_t r, int64_t c, DType t, uint32_t stream) : rows(r), cols(c), type(t) {
    PhiloxStream draw(7, stream);
    for (int64_t i = 0; i < r * c; ++i) {
      wide.push_back(static_cast<float>(draw.uniform() * 2 - 1));
      if (t != DType::bf16) continue;
      half.push_back(to_bf16(wide.back()));
      wide.back() = to_float(half.back());
    }
  }
  Tensor tensor() {
    if (type == DType::bf16) return {half.data(), type, {rows, cols}};
    return {wide.data(), type, {rows, cols}};
  }
  double at(int64_t r, int64_t c) const { return wide[static_cast<size_t>(r * cols + c)]; }
};

/// Trainable weights with their memory.
struct Layer {
  ops::PackedWeights::Spec spec;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  Layer(Matrix& w, bool trainable = true) {
    spec = {
        .name = "weights/w", .out = w.rows, .in = w.cols, .stored = w.type, .trainable = trainable};
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    arena = std::make_unique<Arena>(plan);
    std::vector<std::byte> memory(ops::PackedWeights::staging_bytes(spec));
    ops::Staging staging({}, memory.data(), memory.size());
    const Tensor all = w.tensor();
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          const Tensor part = all.slice(begin, end - begin);
          std::memcpy(to, part.raw(), part.bytes());
        },
        {}, staging);
  }
  /// y = x W^T in f32.
  std::vector<float> forward(Matrix& x) {
    std::vector<std::byte> workspace(ops::PackedWeights::workspace_bytes(spec, x.rows));
    std::vector<float> y(static_cast<size_t>(x.rows * spec.out));
    ops::linear(Tensor(y.data(), DType::f32, {x.rows, spec.out}), x.tensor(), packed,
                ops::Accumulate::no, workspace, {});
    return y;
  }
};

struct Shape {
  int64_t rows, out, in;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {3, 17, 5}, {64, 48, 96}, {130, 250, 33}, {7, 513, 300}};

/// Sums of n products of numbers within 1, each rounded to f32 on the way.
double tolerance(int64_t n, DType out = DType::f32) {
  const double rounded = out == DType::bf16 ? 0x1p-8 * std::sqrt(static_cast<double>(n)) * 4 : 0;
  return 1.2e-7 * static_cast<double>(n + 2) * std::sqrt(static_cast<double>(n)) + 1e-6 + rounded;
}

}  // namespace

TEST_SUITE("ops/linear_gradient") {
  TEST_CASE("input gradients agree with a product in double, in either type and added to") {
    for (const DType dtype : kTypes)
      for (const Shape s : kShapes) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(s.out);
        Matrix w(s.out, s.in, dtype, 1), dy(s.rows, s.out, dtype, 2);
        Layer layer(w);
        std::vector<std::byte> workspace(ops::input_gradient_workspace_bytes(layer.spec, s.rows));
        for (const bool add : {false, true}) {
          Matrix start(s.rows, s.in, DType::f32, 3), narrow(s.rows, s.in, dtype, 4);
          const Matrix before = start;
          ops::linear_input_gradient(start.tensor(), dy.tensor(), layer.packed,
                                     add ? ops::Accumulate::yes : ops::Accumulate::no, workspace);
          ops::linear_input_gradient(narrow.tensor(), dy.tensor(), layer.packed,
                                     ops::Accumulate::no, workspace);
          double worst = 0, worst_narrow = 0;
          for (int64_t r = 0; r < s.rows; ++r)
            for (int64_t c = 0; c < s.in; ++c) {
              double sum = 0;
              for (int64_t o = 0; o < s.out; ++o) sum += dy.at(r, o) * w.at(o, c);
              const auto i = static_cast<size_t>(r * s.in + c);
              const double rounded =
                  dtype == DType::bf16 ? double{to_float(narrow.half[i])} : narrow.at(r, c);
              worst_narrow = test::worse(worst_narrow, std::abs(sum - rounded));
              worst =
                  test::worse(worst, std::abs(sum + (add ? before.at(r, c) : 0) - start.at(r, c)));
            }
          CHECK(worst <= tolerance(s.out));
          CHECK(worst_narrow <= tolerance(s.out, dtype));
        }
      }
  }

  TEST_CASE("weight gradients are added to, and agree with a product in double") {
    for (const DType dtype : kTypes)
      for (const Shape s : kShapes) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(s.out);
        Matrix dy(s.rows, s.out, dtype, 5), x(s.rows, s.in, dtype, 6);
        Matrix dw(s.out, s.in, DType::f32, 7);
        const Matrix before = dw;
        std::vector<std::byte> workspace(
            ops::weight_gradient_workspace_bytes(s.out, s.in, dtype, s.rows));
        ops::linear_weight_gradient(dw.tensor(), dy.tensor(), x.tensor(), ops::Accumulate::yes,
                                    workspace);
        double worst = 0;
        for (int64_t o = 0; o < s.out; ++o)
          for (int64_t c = 0; c < s.in; ++c) {
            double sum = before.at(o, c);
            for (int64_t r = 0; r < s.rows; ++r) sum += dy.at(r, o) * x.at(r, c);
            worst = test::worse(worst, std::abs(sum - dw.at(o, c)));
          }
        CHECK(worst <= tolerance(s.rows));
      }
  }

  TEST_CASE("trainable weights give the bits of others") {
    for (const DType dtype : kTypes) {
      Matrix w(300, 70, dtype, 8), x(9, 70, dtype, 9);
      CHECK(Layer(w).forward(x) == Layer(w, false).forward(x));
    }
  }

  TEST_CASE("rows and columns that are written are those that products read; others keep theirs") {
    for (const DType dtype : kTypes)
      for (const bool by_rows : {true, false}) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(by_rows);
        Matrix w(530, 70, dtype, 10), x(9, 70, dtype, 11), dy(9, 530, dtype, 12);
        Layer layer(w);
        // Not in order, at both ends, and in the last step of packing, which is a part of one.
        const std::vector<int32_t> listed =
            by_rows ? std::vector<int32_t>{529, 0, 300} : std::vector<int32_t>{69, 3, 0};
        const int64_t other = by_rows ? 70 : 530;
        Matrix values(3, other, DType::f32, 13);
        std::vector<float> given(values.wide), back(given.size());
        for (float& v : given) v = to_float(to_bf16(v));
        if (by_rows)
          ops::write_part(layer.packed, WeightPart::rows, listed, given);
        else
          ops::write_part(layer.packed, WeightPart::columns, listed, given);
        Matrix want = w;
        for (size_t i = 0; i < 3; ++i)
          for (int64_t j = 0; j < other; ++j) {
            const int64_t at = by_rows ? listed[i] * 70 + j : j * 70 + listed[i];
            const float v = given[static_cast<size_t>(by_rows ? static_cast<int64_t>(i) * 70 + j
                                                              : j * 3 + static_cast<int64_t>(i))];
            want.wide[static_cast<size_t>(at)] = v;
            if (dtype == DType::bf16) want.half[static_cast<size_t>(at)] = to_bf16(v);
          }
        Layer fresh(want);
        CHECK(layer.forward(x) == fresh.forward(x));
        std::vector<std::byte> workspace(ops::input_gradient_workspace_bytes(layer.spec, 9));
        Matrix dx(9, 70, DType::f32, 14), dx0(9, 70, DType::f32, 15);
        ops::linear_input_gradient(dx.tensor(), dy.tensor(), layer.packed, ops::Accumulate::no,
                                   workspace);
        ops::linear_input_gradient(dx0.tensor(), dy.tensor(), fresh.packed, ops::Accumulate::no,
                                   workspace);
        CHECK(dx.wide == dx0.wide);
        if (by_rows)
          ops::read_part(back, layer.packed, WeightPart::rows, listed);
        else
          ops::read_part(back, layer.packed, WeightPart::columns, listed);
        CHECK(back == given);
      }
  }

  TEST_CASE("single elements that are written are those that products read; others keep theirs") {
    for (const DType dtype : kTypes) {
      CAPTURE(dtype_name(dtype));
      Matrix w(300, 70, dtype, 16), x(9, 70, dtype, 17);
      Layer layer(w);
      const std::vector<int32_t> listed = {0, 71, 299 * 70 + 69};
      const std::vector<float> given = {0.5f, -0.25f, 3.0f};
      ops::write_part(layer.packed, WeightPart::elements, listed, given);
      Matrix want = w;
      for (size_t i = 0; i < 3; ++i) {
        want.wide[static_cast<size_t>(listed[i])] = given[i];
        if (dtype == DType::bf16) want.half[static_cast<size_t>(listed[i])] = to_bf16(given[i]);
      }
      CHECK(layer.forward(x) == Layer(want).forward(x));
      std::vector<float> back(3);
      ops::read_part(back, layer.packed, WeightPart::elements, listed);
      CHECK(back == given);
    }
  }
}
