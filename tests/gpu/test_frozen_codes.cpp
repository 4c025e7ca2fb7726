// Products and input gradients of codes that training reads, in panels of any size.
#include <cstring>
#include <functional>

#include "gpu/coded_products.h"
#include "gpu/device_buffer.h"
#include "kernels/cuda/gpu.h"
#include "ops/linear_device.h"
#include "ops/linear_gradient.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

using Spec = ops::PackedWeights::Spec;

/// Trainable codes on the GPU, one format after the other, perhaps with rows of numbers after them.
struct Frozen {
  Spec spec;
  std::vector<float> numbers;  // as products read them, in bf16
  double rounding = 0;
  bool holds = false;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  explicit Frozen(const std::vector<const CodedCase*>& stacks, int n_numbers = 0,
                  bool gated = false)
      : spec{.name = "weights/w",
             .in = stacks.front()->m.in,
             .stored = format_of(stacks.front()->m),
             .input = DType::bf16,
             .device = kGpu,
             .trainable = true,
             .gated = gated} {
    std::vector<std::vector<uint8_t>> bytes;
    const auto add = [&](int64_t rows, const WeightFormat& format, std::vector<uint8_t> of_rows) {
      spec.stacked.push_back({rows, format});
      spec.out += rows;
      bytes.push_back(std::move(of_rows));
    };
    for (const CodedCase* c : stacks) {
      const std::vector<float> weights = weights_of(*c);
      numbers.insert(numbers.end(), weights.begin(), weights.end());
      rounding = std::max(rounding, rounding_of(c->m));
      add(c->out, format_of(c->m), c->codes);
    }
    if (n_numbers > 0) {
      const auto n = static_cast<size_t>(n_numbers * spec.in);
      std::vector<bf16> rows;
      PhiloxStream stream(4, 1);
      for (size_t i = 0; i < n; ++i) {
        numbers.push_back(random_float(stream, 1.0f));
        rows.push_back(to_bf16(numbers.back()));
      }
      const auto* const begin = reinterpret_cast<const uint8_t*>(rows.data());
      add(n_numbers, DType::bf16, {begin, begin + n * sizeof(bf16)});
    }
    if (bytes.size() == 1) spec.stacked.clear();
    for (float& v : numbers) v = to_float(to_bf16(v));
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
    arena = std::make_unique<Arena>(plan);
    ops::Staging staging(kGpu, arena->take("load/staging"), plan.find("load/staging")->bytes);
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          size_t i = 0;
          for (; i < spec.stacked.size() && begin >= spec.stacked[i].rows; ++i) {
            begin -= spec.stacked[i].rows;
            end -= spec.stacked[i].rows;
          }
          const size_t row = row_bytes(spec.stacks()[i].stored, spec.in);
          std::memcpy(to, bytes[i].data() + static_cast<size_t>(begin) * row,
                      static_cast<size_t>(end - begin) * row);
        },
        {}, staging);
    staging.wait();
  }

  /// The least workspace, the next ones, or all that is planned.
  std::vector<size_t> workspaces() const {
    const size_t all = ops::PackedWeights::workspace_bytes(spec, 4096),
                 row = matrix_bytes(DType::bf16, kTileOutputs, spec.in),
                 column = matrix_bytes(DType::bf16, spec.out, kTileInputs),
                 least = ops::linear_cuda::kWorkspaceBytes + std::max(row, column);
    return {std::min(all, least), std::min(all, least + row + column), all};
  }

  void check(int64_t rows, const std::vector<size_t>& workspaces) const {
    const int64_t out = spec.out, in = spec.in;
    std::vector<float> transposed(numbers.size());
    for (int64_t o = 0; o < out; ++o)
      for (int64_t i = 0; i < in; ++i)
        transposed[static_cast<size_t>(i * out + o)] = numbers[static_cast<size_t>(o * in + i)];
    ActBuffer x = random_input(rows * in), dy = random_input(rows * out);
    const Stream stream = queue().stream();
    // Few rows multiply codes that are not rounded to bf16.
    const bool hopper = cuda::gpu().isa == cuda::GpuIsa::hopper;
    const bool narrow = rows <= (hopper && !holds ? 256 : 48), is_rounded = rounding > 0;
    for (const size_t bytes : workspaces) {
      CAPTURE(bytes);
      const std::span<std::byte> workspace(static_cast<std::byte*>(workspace_of(bytes)), bytes);
      const auto check_one = [&](ActBuffer& input, int64_t width, int64_t height, bool add,
                                 DType type, const std::vector<float>& weights, bool is_narrow,
                                 const auto& run) {
        const std::vector<float> start(static_cast<size_t>(rows * width), 0.25f);
        const DeviceBuffer from(input.data(), static_cast<size_t>(rows * height) * sizeof(bf16));
        const DeviceBuffer to(add ? start.data() : nullptr, start.size() * dtype_bytes(type));
        run(Tensor{to.raw(), type, {rows, width}, kGpu},
            Tensor{from.raw(), DType::bf16, {rows, height}, kGpu},
            add ? ops::Accumulate::yes : ops::Accumulate::no);
        ActBuffer got(type, start.size());
        read_back(to, got);
        std::vector<float> values;
        for (size_t i = 0; i < start.size(); ++i) values.push_back(got.get(i));
        CHECK(worst(values,
                    wanted(weights, input, rows, width, height, nullptr, add ? &start : nullptr,
                           is_narrow, rounding),
                    type == DType::bf16 ? 0x1p-8 : 0) <= 1);
      };
      for (const auto& [type, add] :
           {std::pair(DType::bf16, false), {DType::f32, false}, {DType::f32, true}}) {
        check_one(x, out, in, add, type, numbers, narrow || is_rounded,
                  [&](const Tensor& y, const Tensor& from, ops::Accumulate accumulate) {
                    ops::linear(y, from, packed, accumulate, workspace, stream);
                  });
        check_one(dy, in, out, add, type, transposed, is_rounded,
                  [&](const Tensor& dx, const Tensor& from, ops::Accumulate accumulate) {
                    ops::linear_input_gradient(dx, from, packed, accumulate, workspace, stream);
                  });
      }
    }
  }

  /// Calls visit(value, number of the matrix) for the values of a part.
  void each_value(WeightPart part, const std::vector<int32_t>& index,
                  const std::function<void(size_t, size_t)>& visit) const {
    const auto n = static_cast<int64_t>(index.size());
    const int64_t across = part == WeightPart::rows ? spec.in : spec.out;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t k = 0; k < across; ++k) {
        const int64_t at = index[static_cast<size_t>(i)];
        part == WeightPart::rows
            ? visit(static_cast<size_t>(i * across + k), static_cast<size_t>(at * across + k))
            : visit(static_cast<size_t>(k * n + i), static_cast<size_t>(k * spec.in + at));
      }
  }

  /// Holds a part, and changes it.
  void check_held(WeightPart part, const std::vector<int32_t>& index, int64_t rows) {
    const size_t n =
        index.size() * static_cast<size_t>(part == WeightPart::rows ? spec.in : spec.out);
    const DeviceBuffer placed(index), held(n * sizeof(bf16)), wide(n * sizeof(float));
    const std::span<const int32_t> list(placed.as<int32_t>(), index.size());
    const Stream stream = queue().stream();
    const auto check_read = [&] {
      ops::read_part({wide.as<float>(), n}, packed, part, list, stream);
      const std::vector<float> got = wide.vector<float>();
      each_value(part, index, [&](size_t value, size_t number) {
        if (rounding == 0)
          REQUIRE(got[value] == numbers[number]);
        else
          REQUIRE(std::abs(got[value] - numbers[number]) <=
                  rounding + 0x1p-7 * std::abs(numbers[number]));
      });
    };
    CHECK_THROWS_AS(ops::write_part(packed, part, list, {wide.as<float>(), n}, stream), Error);
    ops::hold_part(packed, part, list, held.raw(), stream);
    holds = true;  // all products widen codes then
    check_read();
    std::vector<float> other;
    PhiloxStream draw(7, 1);
    for (size_t i = 0; i < n; ++i) other.push_back(to_float(to_bf16(random_float(draw, 1.0f))));
    const DeviceBuffer moved(other);
    ops::write_part(packed, part, list, {moved.as<float>(), n}, stream);
    each_value(part, index, [&](size_t value, size_t number) { numbers[number] = other[value]; });
    check_read();
    check(rows, workspaces());
  }
};

std::vector<int32_t> some_of(int64_t n) {
  return {0,
          7,
          8,
          static_cast<int32_t>(n / 2),
          static_cast<int32_t>(n / 2 + 1),
          static_cast<int32_t>(n - 1)};
}

}  // namespace

TEST_SUITE("gpu/ops/frozen_codes") {
  TEST_CASE("products and input gradients of every format are those of the numbers") {
    for (const int in : {64, 200, 576, 1040})
      for (const CodedMatrix& m : coded_formats(in)) {
        if (!ops::multiplies_codes(format_of(m), DType::bf16, kGpu)) continue;
        CAPTURE(format_name(format_of(m)));
        CAPTURE(in);
        const CodedCase c(m, in % 16 == 0 ? 80 : 77, 1);
        const Frozen w({&c});
        w.check(3, {w.workspaces().back()});
        w.check(81, w.workspaces());
      }
  }

  TEST_CASE("gates and what they gate, and stacks of formats with numbers") {
    const CodedMatrix four{Code::i4, ScaleType::f16, Zero::integer, 64, 320},
        eight{Code::i8, ScaleType::f16, Zero::none, 32, 320};
    const CodedCase both(four, 88, 1), odd(four, 70, 1), first(four, 40, 1), second(eight, 25, 1);
    for (const int64_t rows : {2, 60}) {
      CAPTURE(rows);
      for (const CodedCase* paired : {&both, &odd}) {
        const Frozen w({paired}, 0, true);
        w.check(rows, w.workspaces());
      }
      const Frozen stacked({&first, &second}, 19);
      stacked.check(rows, stacked.workspaces());
    }
  }

  TEST_CASE("a held part begins as the codes' numbers, and products read what is written to it") {
    const CodedMatrix four{Code::i4, ScaleType::f16, Zero::integer, 64, 320},
        eight{Code::i8, ScaleType::f16, Zero::minimum, 32, 320},
        fp8{Code::fp8, ScaleType::f32, Zero::none, 0, 200},
        blocks{Code::i6, ScaleType::two_level, Zero::none, 16, 512};
    const CodedCase a(four, 88, 1), b(eight, 25, 1), c(fp8, 77, 1), d(blocks, 50, 1);
    for (const WeightPart part : {WeightPart::rows, WeightPart::columns})
      for (const int64_t rows : {2, 60}) {
        CAPTURE(static_cast<int>(part));
        CAPTURE(rows);
        const auto check = [&](Frozen w) {
          w.check_held(part, some_of(part == WeightPart::rows ? w.spec.out : w.spec.in), rows);
        };
        check(Frozen({&a}));
        check(Frozen({&a}, 0, true));
        check(Frozen({&c}));
        check(Frozen({&d}));
        check(Frozen({&a, &b}, 19));
      }
  }
}
