#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "gpu/device_buffer.h"
#include "kernels/elementwise_case.h"
#include "kernels/norm/rms_norm.h"
#include "ops/linear.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

/// A folder of choices that only this test program uses, named before the first product.
const std::filesystem::path kCacheFolder = [] {
  static const TemporaryFolder folder;
  setenv("TANDEM_CACHE_DIR", folder.path().c_str(), 1);
  return folder.path();
}();

ActBuffer random_values(DType type, int64_t n, uint32_t id) {
  ActBuffer b(type, static_cast<size_t>(n));
  PhiloxStream stream(5, id);
  fill(b, stream, 1.0f);
  return b;
}

/// A layer on the GPU and what it was made from.
struct Layer {
  ops::PackedWeights::Spec spec;
  ActBuffer w;
  std::vector<float> bias;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  Layer(int64_t out, int64_t in, DType dtype, bool with_bias, uint32_t id = 1)
      : spec{"weights/w", out, in, with_bias, dtype, dtype, kGpu},
        w(random_values(dtype, out * in, id)) {
    if (with_bias) {
      Buffer<float> b(static_cast<size_t>(out));
      PhiloxStream stream(5, 1000);
      fill(b, stream, 4.0f);
      bias.assign(b.data(), b.data() + out);
    }
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
    arena = std::make_unique<Arena>(plan);
    ops::Staging staging(kGpu, arena->take("load/staging"), plan.find("load/staging")->bytes);
    const size_t row = static_cast<size_t>(in) * dtype_bytes(dtype);
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          std::memcpy(to, static_cast<char*>(w.data()) + static_cast<size_t>(begin) * row,
                      static_cast<size_t>(end - begin) * row);
        },
        bias, staging);
    staging.wait();
  }
};

/// Scratch of every product here.
std::span<std::byte> workspace() {
  static const size_t bytes =
      ops::PackedWeights::workspace_bytes({"", 1, 1, false, DType::bf16, DType::bf16, kGpu}, 4096);
  static auto* p = static_cast<std::byte*>(cuda::allocate(0, bytes));
  return {p, bytes};
}

struct Call {
  int64_t rows;
  DType y_type = DType::f32;
  bool accumulate = false;
  bool prepared = true;
};

Tensor tensor(const DeviceBuffer& b, DType t, int64_t rows, int64_t cols) {
  return {b.raw(), t, {rows, cols}, kGpu};
}

/// y of one product; with `start` for what it is added to.
ActBuffer run(const Layer& l, ActBuffer& x, const Call& c, ActBuffer* start = nullptr) {
  const auto n = static_cast<size_t>(c.rows * l.spec.out);
  ActBuffer y(c.y_type, n);
  const DeviceBuffer dx(x.data(), static_cast<size_t>(c.rows * l.spec.in) * dtype_bytes(x.type));
  const DeviceBuffer dy(start ? start->data() : nullptr, n * dtype_bytes(c.y_type));
  const auto add = c.accumulate ? ops::Accumulate::yes : ops::Accumulate::no;
  const Tensor xt = tensor(dx, x.type, c.rows, l.spec.in),
               yt = tensor(dy, c.y_type, c.rows, l.spec.out);
  if (c.prepared) {
    const DeviceBuffer trial(n * dtype_bytes(c.y_type));
    const ops::PackedWeights* alike[] = {&l.packed};
    ops::tune_linear(tensor(trial, c.y_type, c.rows, l.spec.out), xt, alike, add, {}, workspace(),
                     queue().stream());
  }
  ops::linear(yt, xt, l.packed, add, workspace(), queue().stream());
  read_back(dy, y);
  return y;
}

/// Requires every element to be within what f32 sums in any order and the rounding of y allow: each
/// of the in + 2 additions errs by at most one spacing (tensor cores cut where others round) of the
/// sum of magnitudes.
void require_correct(const Layer& l, ActBuffer& x, const Call& c, ActBuffer& y, ActBuffer* start) {
  ActBuffer want(DType::f32, y.size());
  std::vector<double> bound(y.size());
  const int64_t in = l.spec.in, out = l.spec.out;
  ActBuffer w = l.w;
  std::vector<double> row(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i)
      row[static_cast<size_t>(i)] = w.get(static_cast<size_t>(o * in + i));
    for (int64_t r = 0; r < c.rows; ++r) {
      const auto at = static_cast<size_t>(r * out + o);
      double sum = l.spec.bias ? l.bias[static_cast<size_t>(o)] : 0.0;
      double size = std::abs(sum);
      const double rounded_bias = size;
      if (start) sum += start->get(at), size += std::abs(double{start->get(at)});
      for (int64_t i = 0; i < in; ++i) {
        const double product = x.get(static_cast<size_t>(r * in + i)) * row[static_cast<size_t>(i)];
        sum += product;
        size += std::abs(product);
      }
      want.set(at, static_cast<float>(sum));
      bound[at] =
          static_cast<double>(in + 2) * spacing(DType::f32) * size +
          (c.y_type == DType::bf16 ? spacing(DType::bf16) * (std::abs(sum) + rounded_bias) : 0.0);
    }
  }
  REQUIRE_CLOSE(y, want, [&](size_t i) { return bound[i]; });
}

bool same_bits(ActBuffer& a, ActBuffer& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * dtype_bytes(a.type)) == 0;
}

const std::vector<int64_t> kRowCounts = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                         12, 13, 14, 15, 16, 17, 31, 32, 33, 64, 100};

}  // namespace

TEST_SUITE("gpu/ops/linear") {
  TEST_CASE("agrees with a double-precision product over dtypes, shapes and epilogues") {
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const auto& [out, in] : {std::pair<int64_t, int64_t>{640, 384},
                                    {250, 48},
                                    {1, 17},
                                    {333, 72},
                                    {48, 1000},
                                    {513, 33},
                                    {15, 4}})
        for (const bool bias : {false, true}) {
          const Layer layer(out, in, dtype, bias);
          for (const int64_t rows : kRowCounts)
            for (const Call& c :
                 {Call{rows}, Call{rows, DType::bf16}, Call{rows, DType::f32, true}}) {
              if (dtype == DType::f32 && c.y_type == DType::bf16) continue;
              CAPTURE(dtype_name(dtype));
              CAPTURE(dtype_name(c.y_type));
              CAPTURE(out);
              CAPTURE(in);
              CAPTURE(bias);
              CAPTURE(rows);
              CAPTURE(c.accumulate);
              Call call = c;
              call.prepared = rows == 3 || rows == 64;  // the others by rule
              ActBuffer x = random_values(dtype, rows * in, 3);
              ActBuffer start = random_values(DType::f32, rows * out, 4);
              ActBuffer* from = c.accumulate ? &start : nullptr;
              ActBuffer y = run(layer, x, call, from);
              require_correct(layer, x, call, y, from);
            }
        }
  }

  TEST_CASE("agrees on the long rows of a model") {
    const Layer layer(80, 14336, DType::bf16, false);
    for (const int64_t rows : {1, 5, 8, 11, 16, 40}) {
      CAPTURE(rows);
      ActBuffer x = random_values(DType::bf16, rows * layer.spec.in, 3);
      const Call c{rows};
      ActBuffer y = run(layer, x, c);
      require_correct(layer, x, c, y, nullptr);
    }
  }

  TEST_CASE(
      "gives the same bits again, also from the kept choices, and a broken file does no harm") {
    const Layer layer(1000, 2048, DType::bf16, false);
    const std::filesystem::path file = kCacheFolder / "linear.json";
    std::map<int64_t, ActBuffer> first;
    for (const int64_t rows : {1, 4, 16, 100}) {
      CAPTURE(rows);
      ActBuffer x = random_values(DType::bf16, rows * layer.spec.in, 3);
      const Call c{rows};
      first.emplace(rows, run(layer, x, c));
      for (int i = 0; i < 5; ++i) {
        ActBuffer again = run(layer, x, c);
        CHECK(same_bits(again, first.at(rows)));
      }
    }
    REQUIRE(std::filesystem::exists(file));
    const auto written = std::filesystem::last_write_time(file);
    ops::forget_linear_choices();
    for (auto& [rows, y] : first) {
      ActBuffer x = random_values(DType::bf16, rows * layer.spec.in, 3);
      ActBuffer again = run(layer, x, {rows});
      CHECK(same_bits(again, y));
    }
    CHECK(std::filesystem::last_write_time(file) == written);  // nothing was measured

    ops::forget_linear_choices();
    std::ofstream(file) << "{\"NVIDIA";
    ActBuffer x = random_values(DType::bf16, 4 * layer.spec.in, 3);
    ActBuffer y = run(layer, x, {4});
    require_correct(layer, x, {4}, y, nullptr);
    std::ifstream mended(file);
    const std::string text{std::istreambuf_iterator<char>(mended), {}};
    CHECK(text.find("rows=4 out=1000 in=2048") != std::string::npos);
  }

  TEST_CASE("a row's result does not depend on the other rows' values") {
    const Layer layer(200, 512, DType::bf16, false);
    for (const int64_t rows : {2, 8, 16, 40}) {
      CAPTURE(rows);
      ActBuffer x = random_values(DType::bf16, rows * 512, 3);
      ActBuffer y = run(layer, x, {rows});
      for (int64_t i = 512; i < rows * 512; ++i) x.set(static_cast<size_t>(i), NAN);
      ActBuffer z = run(layer, x, {rows});
      CHECK(std::memcmp(y.data(), z.data(), 200 * sizeof(float)) == 0);
      CHECK(std::isnan(z.get(200)));
    }
  }

  TEST_CASE("fused with the norm before it and the gate behind it, it is what they give apart") {
    constexpr std::optional<Gate> kFusedGates[] = {{}, Gate::silu, Gate::gelu_tanh};
    for (const auto& [out, in] :
         {std::pair<int64_t, int64_t>{640, 384}, {250, 48}, {6, 8}, {64, 14336}})
      for (const bool norm : {false, true})
        for (const std::optional<Gate> gate : kFusedGates)
          for (const bool bias : {false, true})
            for (const int64_t rows : {1, 2, 5, 8, 11, 16}) {
              CAPTURE(out);
              CAPTURE(in);
              CAPTURE(norm);
              CAPTURE(gate ? static_cast<int>(*gate) : -1);
              CAPTURE(bias);
              CAPTURE(rows);
              const Layer layer(out, in, DType::bf16, bias);
              const float marker =
                  0;  // in place of norm weights, where only their being there counts
              if (!ops::can_fuse(layer.packed, rows, {norm ? &marker : nullptr, 1e-5f, gate})) {
                // x alone is larger than the shared memory of a block.
                CHECK(rows * in * 2 > cuda::gpu().block_shared_bytes - 64 * 1024);
                continue;
              }
              ActBuffer x = random_values(norm ? DType::f32 : DType::bf16, rows * in, 3);
              ActBuffer weight = random_values(DType::f32, in, 6);
              ActBuffer normed = x;
              if (norm) {
                normed = ActBuffer(DType::bf16, x.size());
                rms_norm_ref({.out = normed.data(),
                              .x = x.f32.data(),
                              .weight = weight.f32.data(),
                              .n_rows = static_cast<int>(rows),
                              .dim = static_cast<int>(in),
                              .eps = 1e-5f,
                              .act = DType::bf16},
                             {0, static_cast<int>(rows)});
              }
              const int64_t width = gate ? out / 2 : out;
              const DeviceBuffer dx = on_device(x), dw = on_device(weight);
              const DeviceBuffer dy(static_cast<size_t>(rows * width) * sizeof(float));
              ops::linear_fused(tensor(dy, DType::f32, rows, width), tensor(dx, x.type, rows, in),
                                {norm ? dw.as<float>() : nullptr, 1e-5f, gate}, layer.packed,
                                ops::Accumulate::no, queue().stream());
              ActBuffer got(DType::f32, static_cast<size_t>(rows * width)), want = got;
              read_back(dy, got);
              std::vector<double> bound(got.size());
              ActBuffer w = layer.w;
              for (int64_t r = 0; r < rows; ++r)
                for (int64_t o = 0; o < width; ++o) {
                  // Sums err as in the bare product; each normalised input may round the other way.
                  const auto product = [&](int64_t of) {
                    double sum = bias ? layer.bias[static_cast<size_t>(of)] : 0.0,
                           size = std::abs(sum);
                    for (int64_t i = 0; i < in; ++i) {
                      const double term = double{normed.get(static_cast<size_t>(r * in + i))} *
                                          w.get(static_cast<size_t>(of * in + i));
                      sum += term;
                      size += std::abs(term);
                    }
                    const double share = static_cast<double>(in + 2) * spacing(DType::f32) +
                                         (norm ? spacing(DType::bf16) : 0.0);
                    return std::pair{sum, share * size};
                  };
                  const auto at = static_cast<size_t>(r * width + o);
                  const auto [sum, error] = product(o);
                  want.set(at, static_cast<float>(sum));
                  bound[at] = error;
                  if (!gate) continue;
                  const auto [up, up_error] = product(o + width);
                  const auto [factor, factor_error] = gate_of_sum(*gate, sum, error);
                  want.set(at, static_cast<float>(factor * up));
                  bound[at] = factor_error * (std::abs(up) + up_error) +
                              std::abs(factor) * up_error + 0x1p-126;
                }
              REQUIRE_CLOSE(got, want, [&](size_t i) { return bound[i]; });
            }
  }

  TEST_CASE("can be recorded in a graph and repeated") {
    const Layer layer(300, 256, DType::bf16, true);
    for (const int64_t rows : {1, 8, 40}) {
      ActBuffer x = random_values(DType::bf16, rows * 256, 3);
      // By rule: compute-sanitizer runs this, and would take minutes over a dozen kernels of
      // cuBLASLt's.
      ActBuffer want = run(layer, x, {.rows = rows, .prepared = false});
      const DeviceBuffer dx = on_device(x), dy(static_cast<size_t>(rows * 300) * sizeof(float));
      const cuda::Graph graph(queue(), [&] {
        ops::linear(tensor(dy, DType::f32, rows, 300), tensor(dx, DType::bf16, rows, 256),
                    layer.packed, ops::Accumulate::no, workspace(), queue().stream());
      });
      for (int i = 0; i < 3; ++i) graph.launch(queue());
      ActBuffer got(DType::f32, want.size());
      read_back(dy, got);
      CHECK(same_bits(got, want));
    }
  }

  TEST_CASE("weights larger than the staging ring arrive whole, matrix after matrix") {
    // 3 buffers of 32 MiB: the second matrix begins while the first is on its way.
    constexpr int64_t kOut = 20000, kIn = 4096;
    const std::array<ops::PackedWeights::Spec, 2> specs = {
        ops::PackedWeights::Spec{"weights/a", kOut, kIn, false, DType::bf16, DType::bf16, kGpu},
        {"weights/b", 1000, kIn, false, DType::bf16, DType::bf16, kGpu}};
    MemoryPlan plan;
    for (const auto& s : specs) ops::PackedWeights::plan(s, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(specs[0]), {}, Lifetime::load);
    Arena arena(plan);
    std::array<ops::PackedWeights, 2> packed;
    const auto value = [](int64_t o, int64_t which) {
      return to_bf16(static_cast<float>((o + 7 * which) % 251));
    };
    {
      ops::Staging staging(kGpu, arena.take("load/staging"), plan.find("load/staging")->bytes);
      for (const int64_t m : {0, 1})
        packed[static_cast<size_t>(m)].load(
            specs[static_cast<size_t>(m)], arena,
            [&](int64_t begin, int64_t end, void* to) {
              for (int64_t o = begin; o < end; ++o)
                std::fill_n(static_cast<bf16*>(to) + (o - begin) * kIn, kIn, value(o, m));
            },
            {}, staging);
      staging.wait();
    }
    arena.give_back("load/staging");
    // x of one 1: y is a column of the weights.
    ActBuffer x(DType::bf16, kIn);
    x.set(kIn - 1, 1.0f);
    const DeviceBuffer dx = on_device(x);
    for (const int64_t m : {0, 1}) {
      const int64_t out = specs[static_cast<size_t>(m)].out;
      const DeviceBuffer dy(static_cast<size_t>(out) * sizeof(float));
      ops::linear(tensor(dy, DType::f32, 1, out), tensor(dx, DType::bf16, 1, kIn),
                  packed[static_cast<size_t>(m)], ops::Accumulate::no, workspace(),
                  queue().stream());
      const auto y = dy.vector<float>();
      int64_t wrong = 0;
      for (int64_t o = 0; o < out; ++o) wrong += y[static_cast<size_t>(o)] != to_float(value(o, m));
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("rows that the source writes on the GPU are taken from there") {
    const ops::PackedWeights::Spec spec{"weights/w", 4, 8, false, DType::f32, DType::f32, kGpu};
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
    Arena arena(plan);
    std::vector<float> values(32, 2.0f);
    const DeviceBuffer source(values);
    ops::PackedWeights packed;
    ops::Staging staging(kGpu, arena.take("load/staging"), plan.find("load/staging")->bytes);
    packed.load(
        spec, arena, [](int64_t, int64_t, void*) { FAIL("asked the host"); }, {}, staging,
        [&](int64_t begin, int64_t end, void* to, Stream) {
          CHECK(begin == 0);
          CHECK(end == 4);
          queue().copy_within(to, source.raw(), source.bytes());
          queue().wait();
          return true;
        });
    staging.wait();
    const std::vector<float> ones(8, 1.0f);
    const DeviceBuffer x(ones), y(4 * sizeof(float));
    ops::linear(tensor(y, DType::f32, 1, 4), tensor(x, DType::f32, 1, 8), packed,
                ops::Accumulate::no, workspace(), queue().stream());
    CHECK(y.vector<float>() == std::vector<float>(4, 16.0f));
  }
}
