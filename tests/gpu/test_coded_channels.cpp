#include <cmath>

#include "gpu/coded_weights.h"
#include "kernels/elementwise_case.h"
#include "ops/channels.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr float kUnwritten = 77;

enum class Listed : uint8_t { none, one, half, all, no_list };

/// An FFN of random codes on the GPU, a step's rows and a list.
struct CodedFfn {
  static constexpr Gate kGate = Gate::silu;
  CodedCase gate_up, down;
  int rows, dim, channels;
  OnGpu on_gate_up, on_down;
  std::vector<float> upper, lower;  // weights
  ActBuffer x, known, products;     // [rows, dim], [rows, channels] twice
  std::vector<int32_t> ids;
  Wanted both;  // products of all gates and ups

  CodedFfn(const CodedMatrix& m, int n_rows, int width, int n_channels)
      : gate_up(of_inputs(m, width), 2 * n_channels, 1),
        down(of_inputs(m, n_channels), width, n_rows),
        rows(n_rows),
        dim(width),
        channels(n_channels),
        on_gate_up({&gate_up}, {.bias = true, .gated = true}),
        on_down({&down}, {.bias = true, .by_input = true}),
        upper(weights_of(gate_up)),
        lower(weights_of(down)),
        x(random_input(int64_t{n_rows} * width)),
        known(random_input(int64_t{n_rows} * n_channels)),
        products(random_input(int64_t{n_rows} * n_channels)),
        both(wanted(upper, x, n_rows, 2 * int64_t{n_channels}, width, gate_up.bias.data(), nullptr,
                    false, rounding_of(m))) {}

  static CodedMatrix of_inputs(CodedMatrix m, int in) {
    m.in = in;
    return m;
  }
  void list(Listed which) {
    ids.clear();
    PhiloxStream draw(3);
    for (int j = 0; j < channels; ++j)
      if (which == Listed::all || which == Listed::no_list ||
          (which == Listed::half && draw.below(2) == 1) ||
          (which == Listed::one && j == channels / 3))
        ids.push_back(j);
  }

  /// Rows [first, first + n) of y by a list; of both outputs in bf16.
  std::vector<float> run(ChannelOutput output, Listed which, int first, int n) {
    const auto listed = static_cast<int32_t>(ids.size());
    const DeviceBuffer on_ids(ids.data(), std::max<size_t>(1, ids.size()) * sizeof(int32_t)),
        on_n(&listed, sizeof listed);
    ActBuffer y(DType::bf16, static_cast<size_t>(n * channels));
    for (size_t i = 0; i < y.size(); ++i) y.set(i, kUnwritten);
    const DeviceBuffer dy = on_device(y), dx = on_device(x), dknown = on_device(known);
    const auto at = [&](const DeviceBuffer& b, int width) {
      return Tensor{b.as<bf16>() + first * width, DType::bf16, {n, width}, kGpu};
    };
    const Tensor yt{dy.raw(), DType::bf16, {n, channels}, kGpu};
    ops::ChannelList all{.most = channels};
    if (which != Listed::no_list)
      all = {.ids = on_ids.as<int32_t>(), .n = on_n.as<int32_t>(), .most = channels};
    const Stream stream = queue().stream();
    if (output == ChannelOutput::gate)
      ops::gates(yt, at(dx, dim), on_gate_up.packed, kGate, stream);
    else if (output == ChannelOutput::gated)
      ops::gated_channels(yt, at(dx, dim), on_gate_up.packed, kGate, all, stream);
    else
      ops::up_channels(yt, at(dknown, channels), at(dx, dim), on_gate_up.packed, all, stream);
    read_back(dy, y);
    return numbers(y);
  }
  std::vector<float> run_down(Listed which, int first, int n) {
    const auto listed = static_cast<int32_t>(ids.size());
    const DeviceBuffer on_ids(ids.data(), std::max<size_t>(1, ids.size()) * sizeof(int32_t)),
        on_n(&listed, sizeof listed),
        dy = on_device(products),
        out(std::vector<float>(down.start.begin() + first * dim,
                               down.start.begin() + (first + n) * dim));
    ops::ChannelList all{.most = channels};
    if (which != Listed::no_list)
      all = {.ids = on_ids.as<int32_t>(), .n = on_n.as<int32_t>(), .most = channels};
    ops::down_channels({out.raw(), DType::f32, {n, dim}, kGpu},
                       {dy.as<bf16>() + first * channels, DType::bf16, {n, channels}, kGpu},
                       on_down.packed, all, queue().stream());
    return out.vector<float>();
  }
  static std::vector<float> numbers(ActBuffer& y) {
    std::vector<float> all;
    for (size_t i = 0; i < y.size(); ++i) all.push_back(y.get(i));
    return all;
  }

  /// Returns y of the list in f64.
  Wanted expected(ChannelOutput output) {
    Wanted w;
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < channels; ++i) {
        if (i >= std::ssize(ids)) {
          w.y.push_back(kUnwritten);
          w.bound.push_back(0);
          continue;
        }
        const int64_t id = ids[static_cast<size_t>(i)], at = 2 * int64_t{r} * channels + id;
        const auto g = static_cast<size_t>(at), u = static_cast<size_t>(at + channels);
        const bool is_up = output == ChannelOutput::up;
        double factor = is_up ? known.get(static_cast<size_t>(int64_t{r} * channels + id))
                              : plain_gate(kGate, both.y[g]);
        double of_factor = is_up ? 0 : 1.1 * both.bound[g] + 0x1p-14 * std::abs(factor);
        double value = factor, error = of_factor;
        if (output != ChannelOutput::gate) {
          value = factor * both.y[u];
          error =
              of_factor * (std::abs(both.y[u]) + both.bound[u]) + std::abs(factor) * both.bound[u];
        }
        w.y.push_back(value);
        w.bound.push_back(error + 0x1p-8 * std::abs(value) + 1e-37);
      }
    return w;
  }
  Wanted expected_down() {
    ActBuffer chosen(DType::bf16, static_cast<size_t>(rows * channels));
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
      for (size_t i = 0; i < ids.size(); ++i) {
        const size_t first = r * static_cast<size_t>(channels);
        chosen.set(first + static_cast<size_t>(ids[i]), products.get(first + i));
      }
    return wanted(lower, chosen, rows, dim, channels, down.bias.data(), &down.start, false,
                  rounding_of(down.m));
  }
};

std::vector<CodedMatrix> formats() {
  std::vector<CodedMatrix> all;
  for (const CodedMatrix& m : coded_formats(256))
    if (ops::multiplies_codes(format_of(m), DType::bf16, kGpu)) all.push_back(m);
  return all;
}

void check(CodedFfn& c, Listed which) {
  CAPTURE(c.rows);
  CAPTURE(c.dim);
  CAPTURE(static_cast<int>(which));
  c.list(which);
  for (const ChannelOutput output :
       {ChannelOutput::gate, ChannelOutput::gated, ChannelOutput::up}) {
    if (output == ChannelOutput::gate && which != Listed::no_list) continue;
    CAPTURE(static_cast<int>(output));
    const std::vector<float> got = c.run(output, which, 0, c.rows);
    CHECK(worst(got, c.expected(output)) <= 1);
    const std::vector<float> last = c.run(output, which, c.rows - 1, 1);
    CHECK(std::equal(last.begin(), last.end(), got.end() - c.channels));
  }
  const std::vector<float> got = c.run_down(which, 0, c.rows);
  CHECK(worst(got, c.expected_down()) <= 1);
  const std::vector<float> last = c.run_down(which, c.rows - 1, 1);
  CHECK(std::equal(last.begin(), last.end(), got.end() - c.dim));
}

}  // namespace

TEST_SUITE("gpu/ops/coded_channels") {
  TEST_CASE("listed channels of every format, as in double precision; rows do not mix") {
    for (const CodedMatrix& m : formats()) {
      CAPTURE(format_name(format_of(m)));
      CodedFfn few(m, 3, 200, 140), many(m, 16, 264, 300);
      for (const Listed which : {Listed::none, Listed::one, Listed::half, Listed::no_list})
        check(few, which);
      for (const Listed which : {Listed::half, Listed::all}) check(many, which);
    }
  }

  TEST_CASE("1 to 16 rows, odd sizes, and more than blocks take at once") {
    const CodedMatrix m{Code::i4, ScaleType::f16, Zero::integer, 32, 256};
    for (int rows = 1; rows <= kListedRows; ++rows) {
      CodedFfn c(m, rows, 328, 301);  // odd: y does not come in pairs
      check(c, Listed::half);
    }
    for (const auto& [rows, dim, channels] :
         {std::array{2, 36, 130}, {1, 4096, 3002}, {2, 129, 6}}) {
      CodedFfn c(m, rows, dim, channels);
      check(c, Listed::half);
    }
    // Not all rows of x fit at once.
    CodedFfn wide({Code::i8, ScaleType::f16, Zero::none, 0, 256}, 16, 8320, 64);
    check(wide, Listed::half);
  }

  TEST_CASE("codes by input multiply any number of rows") {
    for (const CodedMatrix& m : formats()) {
      CAPTURE(format_name(format_of(m)));
      const CodedCase c(m, 200, 1);
      const OnGpu plain({&c}, {.by_input = true}), biased({&c}, {.bias = true, .by_input = true});
      const std::vector<float> weights = weights_of(c);
      const double rounding = rounding_of(m);
      for (const int64_t rows : {1, 2, 7, 16, 17, 48, 49, 130}) {
        CAPTURE(rows);
        ActBuffer x = random_input(rows * m.in);
        const std::vector<float> start(static_cast<size_t>(rows * c.out), 0.25f);
        const bool widened = rows > 48;
        CHECK(worst(product(plain, x, rows), wanted(weights, x, rows, c.out, m.in, nullptr, nullptr,
                                                    widened, rounding)) <= 1);
        CHECK(worst(product(biased, x, rows, DType::f32, &start),
                    wanted(weights, x, rows, c.out, m.in, c.bias.data(), &start, widened,
                           rounding)) <= 1);
        CHECK(worst(product(plain, x, rows, DType::bf16),
                    wanted(weights, x, rows, c.out, m.in, nullptr, nullptr, true, rounding),
                    0x1p-8) <= 1);
      }
    }
  }

  TEST_CASE("norms of channels are those of their numbers") {
    for (const CodedMatrix& m : formats()) {
      CAPTURE(format_name(format_of(m)));
      const CodedFfn c(m, 1, 72, 130);
      const DeviceBuffer of_up(130 * sizeof(float)), of_down(130 * sizeof(float));
      ops::channel_norms_gate_up(of_up.as<float>(), c.on_gate_up.packed, queue().stream());
      ops::channel_norms_down(of_down.as<float>(), c.on_down.packed, queue().stream());
      const std::vector<float> up = of_up.vector<float>(), down = of_down.vector<float>();
      const double error = m.two_level() ? 1e-2 : 1e-5;  // rounded scales
      for (size_t j = 0; j < 130; ++j) {
        double gates = 0, ups = 0, downs = 0;
        for (size_t i = 0; i < 72; ++i) {
          gates += std::pow(c.upper[j * 72 + i], 2);
          ups += std::pow(c.upper[(130 + j) * 72 + i], 2);
          downs += std::pow(c.lower[i * 130 + j], 2);
        }
        CHECK(up[j] == doctest::Approx(std::sqrt(gates * ups)).epsilon(error));
        CHECK(down[j] == doctest::Approx(std::sqrt(downs)).epsilon(error));
      }
    }
  }
}
