#include <cmath>
#include <vector>

#include "gpu/device_buffer.h"
#include "kernels/cuda_table.h"
#include "kernels/elementwise_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

ActBuffer random_values(DType type, int64_t n, uint32_t id) {
  ActBuffer b(type, static_cast<size_t>(n));
  PhiloxStream stream(7, id);
  fill(b, stream, 1.0f);
  return b;
}

/// A product's operands, and what f32 sums in any order may give.
struct Case {
  int rows, out, in;
  bool bias;
  ActBuffer x, w, b;
  std::vector<double> sum, error;  // [rows, out]

  Case(int n_rows, int n_out, int n_in, bool with_bias)
      : rows(n_rows),
        out(n_out),
        in(n_in),
        bias(with_bias),
        x(random_values(DType::bf16, int64_t{rows} * in, 1)),
        w(random_values(DType::bf16, int64_t{out} * in, 2)),
        b(random_values(DType::f32, out, 3)) {
    const auto floats = [](ActBuffer& from) {
      std::vector<float> all(from.size());
      for (size_t i = 0; i < all.size(); ++i) all[i] = from.get(i);
      return all;
    };
    const std::vector<float> xs = floats(x), ws = floats(w), bs = floats(b);
    for (int r = 0; r < rows; ++r)
      for (int o = 0; o < out; ++o) {
        const float* xr = xs.data() + static_cast<int64_t>(r) * in;
        const float* wo = ws.data() + static_cast<int64_t>(o) * in;
        double s = bias ? bs[static_cast<size_t>(o)] : 0.0, size = std::abs(s);
        for (int i = 0; i < in; ++i) {
          const double term = double{xr[i]} * wo[i];
          s += term, size += std::abs(term);
        }
        sum.push_back(s);
        // Of each addition at most one spacing: tensor cores cut where others round.
        error.push_back((in + 2) * spacing(DType::f32) * size);
      }
  }
};

/// y of the kernel; what lay there before is what it adds to, or NaN.
ActBuffer run(Case& c, TiledLinearParams p) {
  const int width = p.gated ? c.out / 2 : c.out;
  ActBuffer y(p.y_type, static_cast<size_t>(c.rows) * static_cast<size_t>(width));
  for (size_t i = 0; i < y.size(); ++i) y.set(i, p.accumulate ? 2.0f : NAN);
  const DeviceBuffer dx = on_device(c.x), dw = on_device(c.w), db = on_device(c.b),
                     dy = on_device(y);
  p.y = dy.raw();
  p.x = dx.as<bf16>();
  p.w = dw.as<bf16>();
  p.bias = c.bias ? db.as<float>() : nullptr;
  REQUIRE(cuda_table().tiled_linear_fits(p));
  cuda_table().tiled_linear(p, queue().stream());
  cuda::launched("tiled_linear", queue().stream());
  read_back(dy, y);
  return y;
}

void require_correct(const Case& c, const TiledLinearParams& p, ActBuffer& y) {
  ActBuffer want(DType::f32, y.size());
  std::vector<double> bound(y.size());
  const auto out = static_cast<size_t>(c.out), width = p.gated ? out / 2 : out;
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t at = i / width * out + i % width;
    double value = c.sum[at] + (p.accumulate ? 2.0 : 0.0), error = c.error[at];
    if (p.gated) {
      const double up = c.sum[at + width], up_error = c.error[at + width];
      const auto [factor, factor_error] = gate_of_sum(p.gate, c.sum[at], error);
      value = factor * up;
      error = factor_error * (std::abs(up) + up_error) + std::abs(factor) * up_error + 0x1p-126;
    }
    if (p.accumulate) error += spacing(DType::f32) * (std::abs(value) + 2.0);
    if (p.y_type == DType::bf16) error += spacing(DType::bf16) * std::abs(value);
    want.set(i, static_cast<float>(value));
    bound[i] = error;
  }
  REQUIRE_CLOSE(y, want, [&](size_t i) { return bound[i]; });
  // The bound is for the worst case; on the whole errors are far smaller.
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += std::pow(double{y.get(i)} - want.get(i), 2);
    size += std::pow(double{want.get(i)}, 2);
  }
  CHECK(std::sqrt(error / size) < (p.y_type == DType::bf16 ? 4e-3 : 1e-4));
}

/// Whether the kernels in use have a body; where cuBLASLt does these products, none may seem to
/// fit.
bool has_body() {
  if (cuda_table().tiled_linear.has(cuda::gpu().isa)) return true;
  CHECK(!cuda_table().tiled_linear_fits({.rows = 64, .out = 64, .in = 64, .tiling = {1, 1, 1}}));
  return false;
}

std::vector<LinearTiling> all_tilings() {
  std::vector<LinearTiling> all;
  for (const int groups : {1, 2, 3, 4})
    for (const int parts : {1, 2, 3, 8})
      for (const int blocks : {1, 2, 3}) all.push_back({groups, parts, blocks});
  return all;
}

}  // namespace

TEST_SUITE("gpu/tiled_linear") {
  TEST_CASE("agrees with a double-precision product for every tiling") {
    if (!has_body()) return;
    int tried = 0;
    for (const int rows : {1, 16, 17, 33, 64, 90, 128}) {
      // Tiles and chunks of columns that end early, and columns fewer than a ring holds.
      for (const auto& [out, in] : {std::pair{200, 1032}, {768, 64}, {64, 4096}}) {
        Case c(rows, out, in, rows % 2 == 1);
        for (const LinearTiling& tiling : all_tilings())
          for (const bool gated : {false, true}) {
            TiledLinearParams p{.rows = rows,
                                .out = out,
                                .in = in,
                                .y_type = tiling.parts == 2 ? DType::bf16 : DType::f32,
                                .gated = gated,
                                .gate = tiling.blocks == 2 ? Gate::gelu_tanh : Gate::silu,
                                .tiling = tiling};
            p.accumulate = !gated && p.y_type == DType::f32 && tiling.groups == 2;
            if (!cuda_table().tiled_linear_fits(p)) continue;
            CAPTURE(rows);
            CAPTURE(out);
            CAPTURE(in);
            CAPTURE(gated);
            CAPTURE(tiling.groups);
            CAPTURE(tiling.parts);
            CAPTURE(tiling.blocks);
            ActBuffer y = run(c, p);
            require_correct(c, p, y);
            ++tried;
          }
      }
    }
    CHECK(tried > 500);
  }

  TEST_CASE("a row has the same bits whatever the others are, and so has every repetition") {
    if (!has_body()) return;
    Case c(100, 320, 2048, false);
    for (const LinearTiling tiling : {LinearTiling{3, 4, 1}, {1, 2, 2}, {2, 1, 3}}) {
      TiledLinearParams p{
          .rows = 100, .out = 320, .in = 2048, .y_type = DType::f32, .tiling = tiling};
      ActBuffer y = run(c, p);
      for (int i = 0; i < 20; ++i) {
        ActBuffer again = run(c, p);
        REQUIRE(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) == 0);
      }
      Case few = c;
      few.rows = p.rows = 20;
      for (size_t i = 2048; i < c.x.size(); ++i) few.x.set(i, NAN);
      ActBuffer one = run(few, p);
      CHECK(std::memcmp(y.data(), one.data(), 320 * sizeof(float)) == 0);
      CHECK(std::isnan(one.get(320)));
    }
  }

  TEST_CASE("what it cannot run is told beforehand") {
    if (!has_body()) return;
    const TiledLinearParams good{.rows = 64, .out = 64, .in = 64, .tiling = {1, 1, 1}};
    CHECK(cuda_table().tiled_linear_fits(good));
    const auto fits = [&](auto change) {
      TiledLinearParams p = good;
      change(p);
      return cuda_table().tiled_linear_fits(p);
    };
    CHECK(!fits([](auto& p) { p.rows = kTiledRows + 1; }));
    CHECK(!fits([](auto& p) { p.rows = 0; }));
    CHECK(!fits([](auto& p) { p.in = 60; }));
    CHECK(!fits([](auto& p) { p.out = 62; }));
    CHECK(!fits([](auto& p) { p.tiling.groups = 5; }));
    CHECK(!fits([](auto& p) { p.tiling.parts = 2; }));  // one chunk of columns
    CHECK(!fits([](auto& p) { p.tiling.blocks = 30; }));
    CHECK(!fits([](auto& p) { p.in = 4096, p.tiling.parts = 9; }));
  }
}
