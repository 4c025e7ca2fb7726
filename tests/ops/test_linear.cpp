#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/cpu_features.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "kernels/ffn/gate_ref.h"
#include "ops/linear.h"
#include "worst.h"

using namespace tandem;

namespace {

std::vector<float> random_values(size_t n, uint32_t stream, bool bf16_exact) {
  PhiloxStream rng(42, stream);
  std::vector<float> v(n);
  for (float& x : v) {
    x = static_cast<float>(rng.uniform() * 2 - 1);
    if (bf16_exact) x = to_float(to_bf16(x));
  }
  return v;
}

/// One packed layer with its memory, and what it was made from.
struct Layer {
  ops::PackedWeights::Spec spec;
  std::vector<float> w, b;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  Layer(int64_t out, int64_t in, DType dtype, bool bias) {
    spec = {"weights/w", out, in, bias, dtype};
    const bool bf = dtype == DType::bf16;
    w = random_values(static_cast<size_t>(out * in), 1, bf);
    if (bias) b = random_values(static_cast<size_t>(out), 2, false);
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    arena = std::make_unique<Arena>(plan);
    std::vector<std::byte> memory(ops::PackedWeights::staging_bytes(spec));
    ops::Staging staging({}, memory.data(), memory.size());
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          for (int64_t i = begin * in; i < end * in; ++i) {
            const float x = w[static_cast<size_t>(i)];
            if (bf)
              static_cast<bf16*>(to)[i - begin * in] = to_bf16(x);
            else
              static_cast<float*>(to)[i - begin * in] = x;
          }
        },
        b, staging);
  }

  std::vector<float> run(const std::vector<float>& x, int64_t rows, const std::vector<float>* add) {
    std::vector<std::byte> workspace(ops::PackedWeights::workspace_bytes(spec, rows));
    std::vector<float> y(static_cast<size_t>(rows * spec.out), NAN);
    if (add) y = *add;
    std::vector<bf16> xb;
    Tensor xt(const_cast<float*>(x.data()), DType::f32, {rows, spec.in});
    if (spec.input == DType::bf16) {
      for (int64_t i = 0; i < rows * spec.in; ++i) xb.push_back(to_bf16(x[static_cast<size_t>(i)]));
      xt = Tensor(xb.data(), DType::bf16, {rows, spec.in});
    }
    ops::linear(Tensor(y.data(), DType::f32, {rows, spec.out}), xt, packed,
                add ? ops::Accumulate::yes : ops::Accumulate::no, workspace, {});
    return y;
  }
};

double max_error(const Layer& l, const std::vector<float>& x, const std::vector<float>& y,
                 int64_t rows, const std::vector<float>* add) {
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < l.spec.out; ++o) {
      double sum = l.spec.bias ? l.b[static_cast<size_t>(o)] : 0.0;
      for (int64_t i = 0; i < l.spec.in; ++i)
        sum += double(x[static_cast<size_t>(r * l.spec.in + i)]) *
               l.w[static_cast<size_t>(o * l.spec.in + i)];
      const auto at = static_cast<size_t>(r * l.spec.out + o);
      if (add) sum += (*add)[at];
      worst = test::worse(worst, std::abs(sum - y[at]));
    }
  return worst;
}

}  // namespace

TEST_SUITE("ops/linear") {
  TEST_CASE("agrees with a double-precision product over dtypes, shapes, bias and accumulation") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const auto& [out, in] : {std::pair<int64_t, int64_t>{640, 384},
                                    {250, 48},
                                    {1, 17},
                                    {300, 64},
                                    {48, 96},
                                    {513, 33}})
        for (const bool bias : {false, true}) {
          Layer layer(out, in, dtype, bias);
          for (const int64_t rows : {1, 2, 7, 16, 33, 200}) {
            const auto x = random_values(static_cast<size_t>(rows * in), 3, dtype == DType::bf16);
            const auto start = random_values(static_cast<size_t>(rows * out), 4, false);
            // Products of |x|, |w| <= 1 summed in f32: at most `in` roundings of a sum <= in.
            const double tolerance =
                6e-8 * static_cast<double>(in + 2) * std::sqrt(double(in)) + 1e-6;
            CAPTURE(out);
            CAPTURE(in);
            CAPTURE(rows);
            CAPTURE(bias);
            const auto y = layer.run(x, rows, nullptr);
            CHECK(max_error(layer, x, y, rows, nullptr) <= tolerance);
            const auto z = layer.run(x, rows, &start);
            CHECK(max_error(layer, x, z, rows, &start) <= tolerance);
          }
        }
    }
  }

  TEST_CASE("a format that no product multiplies is named with the machine and the remedy") {
    const auto refusal = [](const WeightFormat& stored, DType input, Device device) -> std::string {
      MemoryPlan plan;
      try {
        ops::PackedWeights::plan({"weights/w", 64, 64, false, stored, input, device}, plan);
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::device);
        return std::string(e.what()) + " | " + e.hint_text();
      }
      return {};
    };
    const WeightFormat groups(Code::i4, 64, ScaleType::f16, Zero::integer),
        of_48(Code::i4, 48, ScaleType::f16, Zero::none);
    const Device gpu{Device::Kind::cuda, 1};
    const std::string remedy = " | store the weights in bf16 or f32, whichever their inputs are";
    const std::string cpu = std::string("cpu (") + isa_name(isa_in_use()) + ")";
    CHECK(refusal(of_48, DType::bf16, {}) ==
          cpu + ": no product multiplies i4 g48 f16 weights by bf16 inputs, as weights/w needs" +
              remedy);
    for (const DType t : {DType::bf16, DType::f32}) CHECK(refusal(groups, t, {}).empty());
    CHECK(refusal(DType::f16, DType::f32, {}) ==
          cpu + ": no product multiplies f16 weights by f32 inputs, as weights/w needs" + remedy);
    CHECK(refusal(groups, DType::bf16, gpu).empty());
    CHECK(refusal(groups, DType::f32, gpu) ==
          "cuda:1: no product multiplies i4 g64 f16 integer weights by f32 inputs, as weights/w "
          "needs" +
              remedy);
    for (const Device& device : {Device{}, gpu}) {
      CHECK(!refusal(DType::bf16, DType::f32, device).empty());
      CHECK(!refusal(DType::f32, DType::bf16, device).empty());
      for (const DType t : {DType::bf16, DType::f32}) CHECK(refusal(t, t, device).empty());
    }
  }

  TEST_CASE("rows of several formats are multiplied as those of one format") {
    constexpr int64_t kIn = 96, kRows = 19, kOut = 370;
    const WeightFormat i4(Code::i4, 32, ScaleType::f16, Zero::minimum),
        i8(Code::i8, 16, ScaleType::bf16, Zero::none), i5(Code::i5, 32, ScaleType::f16, Zero::none);
    for (const DType input : {DType::f32, DType::bf16})
      for (const bool int8_inputs : {false, true}) {
        const std::vector<ops::PackedWeights::Spec::Stacked> formats = {
            {300, i4}, {20, i8}, {17, i5}, {33, input}};
        const auto byte = [](int64_t row, size_t at) {
          // Small exponents everywhere: no number of any type is huge or NaN.
          return static_cast<std::byte>((static_cast<size_t>(row) * 37 + at * 101) & 0x37);
        };
        const auto product = [&](const ops::PackedWeights::Spec& spec, int64_t first,
                                 const std::vector<float>& bias) {
          MemoryPlan plan;
          ops::PackedWeights::plan(spec, plan);
          Arena arena(plan);
          std::vector<std::byte> memory(ops::PackedWeights::staging_bytes(spec));
          ops::Staging staging({}, memory.data(), memory.size());
          ops::PackedWeights w;
          w.load(
              spec, arena,
              [&](int64_t begin, int64_t end, void* to) {
                const size_t bytes = row_bytes(spec.format_at(begin), kIn);
                auto* out = static_cast<std::byte*>(to);
                for (int64_t row = begin; row < end; ++row)
                  for (size_t i = 0; i < bytes; ++i) *out++ = byte(first + row, i);
              },
              bias, staging);
          const std::vector<float> x = random_values(kRows * kIn, 9, true);
          std::vector<bf16> narrow;
          for (const float v : x) narrow.push_back(to_bf16(v));
          void* in = input == DType::f32 ? static_cast<void*>(const_cast<float*>(x.data()))
                                         : narrow.data();
          std::vector<float> y(static_cast<size_t>(kRows * spec.out), NAN);
          std::vector<std::byte> workspace(ops::PackedWeights::workspace_bytes(spec, kRows));
          ops::linear(Tensor(y.data(), DType::f32, {kRows, spec.out}),
                      Tensor(in, input, {kRows, kIn}), w, ops::Accumulate::no, workspace, {});
          CHECK(w.bytes() == [&] {
            size_t sum = spec.stacked.empty() ? matrix_bytes(spec.stored, spec.out, kIn) : 0;
            for (const auto& part : spec.stacked) sum += matrix_bytes(part.stored, part.rows, kIn);
            return sum;
          }());
          return y;
        };
        ops::PackedWeights::Spec whole{"weights/w", kOut, kIn, true, i4, input};
        whole.int8_inputs = int8_inputs;
        whole.stacked = formats;
        const std::vector<float> bias = random_values(kOut, 5, false), y = product(whole, 0, bias);
        int64_t first = 0;
        for (const auto& part : formats) {
          CAPTURE(format_name(part.stored));
          ops::PackedWeights::Spec spec{"weights/w", part.rows, kIn, true, part.stored, input};
          spec.int8_inputs = int8_inputs;
          const auto from = static_cast<size_t>(first), n = static_cast<size_t>(part.rows);
          const std::vector<float> alone =
              product(spec, first, {bias.begin() + first, bias.begin() + first + part.rows});
          // Parts of numbers run on another body than whole matrices where the CPU multiplies bf16.
          const double tolerance = is_coded(part.stored) ? 0 : 1e-4;
          for (size_t r = 0; r < kRows; ++r)
            for (size_t o = 0; o < n; ++o)
              CHECK(std::abs(alone[r * n + o] - y[r * kOut + from + o]) <=
                    tolerance * (1 + std::abs(alone[r * n + o])));
          first += part.rows;
        }
      }
  }

  TEST_CASE("linear_gated gives the gate of the first half of the outputs times the second") {
    for (const int i : {0, 1, 2, 3}) {
      const DType dtype = i / 2 == 0 ? DType::f32 : DType::bf16;
      const Gate kind = i % 2 == 0 ? Gate::silu : Gate::gelu_tanh;
      CAPTURE(i);
      constexpr int64_t kRows = 5, kOut = 64, kIn = 48;
      Layer layer(kOut, kIn, dtype, true);
      const std::vector<float> x = random_values(kRows * kIn, 3, true);
      const std::vector<float> both = layer.run(x, kRows, nullptr);
      std::vector<bf16> xb;
      for (const float v : x) xb.push_back(to_bf16(v));
      std::vector<float> scratch(kRows * kOut), y(kRows * kOut / 2);  // room for either dtype
      std::vector<std::byte> workspace(ops::PackedWeights::workspace_bytes(layer.spec, kRows));
      void* in =
          dtype == DType::bf16 ? static_cast<void*>(xb.data()) : const_cast<float*>(x.data());
      ops::linear_gated(Tensor(y.data(), dtype, {kRows, kOut / 2}),
                        Tensor(scratch.data(), dtype, {kRows, kOut}),
                        Tensor(in, dtype, {kRows, kIn}), layer.packed, kind, workspace, {});
      // Products, then the result, are rounded to bf16 there.
      const double tolerance = dtype == DType::bf16 ? 0x1p-5 : 1e-5;
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t o = 0; o < kOut / 2; ++o) {
          const double gate = both[static_cast<size_t>(r * kOut + o)],
                       up = both[static_cast<size_t>(r * kOut + kOut / 2 + o)];
          const auto at = static_cast<size_t>(r * kOut / 2 + o);
          const double got =
              dtype == DType::bf16 ? to_float(reinterpret_cast<bf16*>(y.data())[at]) : y[at];
          CHECK(std::abs(got - gate_value(kind, gate) * up) <=
                tolerance * (0.1 + std::abs(gate * up)));
        }
    }
  }

  TEST_CASE("weights packed by any number of threads give the same products") {
    const int threads = max_threads();
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [out, in] : {std::pair<int64_t, int64_t>{640, 384}, {250, 48}, {65, 17}}) {
        CAPTURE(out);
        CAPTURE(in);
        const auto x = random_values(static_cast<size_t>(40 * in), 3, dtype == DType::bf16);
        std::vector<float> first;
        for (const int n : {1, 3, 40}) {
          set_threads(n);
          Layer layer(out, in, dtype, false);
          set_threads(1);
          const std::vector<float> y = layer.run(x, 40, nullptr);
          if (first.empty()) first = y;
          CHECK(y == first);
        }
      }
    set_threads(threads);
  }

  TEST_CASE("warmed up once for each dtype and number of threads") {
    const int threads = max_threads();
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int n : {1, 2}) {
        set_threads(n);
        CHECK(ops::warm_up_linear(dtype));
        CHECK_FALSE(ops::warm_up_linear(dtype));
      }
      set_threads(1);
      CHECK_FALSE(ops::warm_up_linear(dtype));
    }
    set_threads(threads);
  }

  TEST_CASE("a row's bits do not depend on the rows with it, in f32 and in bf16 widened to it") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      if (dtype == DType::bf16 && isa_in_use() >= Isa::avx512_bf16) continue;  // oneDNN's
      for (const auto& [out, in] :
           {std::pair<int64_t, int64_t>{640, 384}, {250, 48}, {384, 1024}, {64, 2500}}) {
        Layer layer(out, in, dtype, false);
        const auto x = random_values(static_cast<size_t>(700 * in), 3, false);
        const auto all = layer.run(x, 700, nullptr);
        int64_t begin = 0;
        for (const int64_t rows : {1, 1, 2, 3, 5, 8, 13, 16, 17, 40, 64, 100, 430}) {
          const std::vector<float> part(x.begin() + begin * in, x.begin() + (begin + rows) * in);
          const auto y = layer.run(part, rows, nullptr);
          CAPTURE(dtype_name(dtype));
          CAPTURE(rows);
          CAPTURE(out);
          CAPTURE(in);
          CHECK(std::memcmp(y.data(), all.data() + begin * out, y.size() * sizeof(float)) == 0);
          begin += rows;
        }
        CHECK(begin == 700);
      }
    }
  }
}
