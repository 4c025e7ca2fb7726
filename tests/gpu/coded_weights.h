#pragma once
// Weights of codes on a GPU, and dense products with them.
#include "gpu/coded_products.h"
#include "gpu/device_buffer.h"
#include "ops/linear.h"

namespace tandem::test {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

struct OnGpuHow {
  bool bias = false, gated = false, by_input = false, fp8_inputs = false;
};

/// Weights on the GPU in the formats of the cases, one stack after the other.
struct OnGpu {
  ops::PackedWeights::Spec spec;
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;

  explicit OnGpu(const std::vector<const CodedCase*>& stacks, const OnGpuHow& how = {})
      : spec{.name = "weights/w",
             .in = stacks.front()->m.in,
             .bias = how.bias,
             .stored = format_of(stacks.front()->m),
             .input = DType::bf16,
             .device = kGpu,
             .by_input = how.by_input} {
    spec.gated = how.gated;
    spec.fp8_inputs = how.fp8_inputs;
    std::vector<float> biases;
    for (const CodedCase* c : stacks) {
      if (stacks.size() > 1) spec.stacked.push_back({c->out, format_of(c->m)});
      spec.out += c->out;
      if (how.bias) biases.insert(biases.end(), c->bias.begin(), c->bias.end());
    }
    MemoryPlan plan;
    ops::PackedWeights::plan(spec, plan);
    plan.add("load/staging", ops::PackedWeights::staging_bytes(spec), {}, Lifetime::load);
    arena = std::make_unique<Arena>(plan);
    ops::Staging staging(kGpu, arena->take("load/staging"), plan.find("load/staging")->bytes);
    packed.load(
        spec, *arena,
        [&](int64_t begin, int64_t end, void* to) {
          int64_t first = 0;
          for (const CodedCase* c : stacks) {
            const size_t row = c->codes.size() / static_cast<size_t>(c->out);
            if (begin >= first && begin < first + c->out) {
              REQUIRE(end <= first + c->out);  // rows of one format
              std::memcpy(to, c->codes.data() + static_cast<size_t>(begin - first) * row,
                          static_cast<size_t>(end - begin) * row);
            }
            first += c->out;
          }
        },
        biases, staging);
    staging.wait();
  }
};

inline std::span<std::byte> workspace_for(const ops::PackedWeights::Spec& spec) {
  const size_t bytes = ops::PackedWeights::workspace_bytes(spec, 4096);
  return {static_cast<std::byte*>(workspace_of(bytes)), bytes};
}

/// y of a product, from `start` on if that is given.
inline std::vector<float> product(const OnGpu& w, ActBuffer& x, int64_t rows,
                                  DType y_type = DType::f32,
                                  const std::vector<float>* start = nullptr,
                                  std::optional<Gate> gate = {}) {
  const int64_t out = w.spec.out, width = gate ? out / 2 : out;
  const auto n = static_cast<size_t>(rows * width);
  const DeviceBuffer dx(x.data(), static_cast<size_t>(rows * w.spec.in) * 2);
  const DeviceBuffer dy(start ? start->data() : nullptr, n * dtype_bytes(y_type));
  const DeviceBuffer scratch(static_cast<size_t>(rows * out) * dtype_bytes(y_type));
  const Tensor xt{dx.raw(), DType::bf16, {rows, w.spec.in}, kGpu},
      yt{dy.raw(), y_type, {rows, width}, kGpu}, st{scratch.raw(), y_type, {rows, out}, kGpu};
  if (gate)
    ops::linear_gated(yt, st, xt, w.packed, *gate, workspace_for(w.spec), queue().stream());
  else
    ops::linear(yt, xt, w.packed, start ? ops::Accumulate::yes : ops::Accumulate::no,
                workspace_for(w.spec), queue().stream());
  ActBuffer y(y_type, n);
  read_back(dy, y);
  std::vector<float> values;
  for (size_t i = 0; i < n; ++i) values.push_back(y.get(i));
  return values;
}

}  // namespace tandem::test
