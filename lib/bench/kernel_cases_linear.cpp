// Dense layers on prepacked weights, against oneDNN alone.
#include <cmath>

#include "bench/kernel_data.h"
#include "machine/onednn_gemm.h"
#include "ops/linear.h"
#include "ops/loading.h"

namespace tandem::bench {
namespace {

// From here on a layer is bound by arithmetic, and oneDNN on one warm copy of the weights is a fair
// comparison.
constexpr int kComputeBoundRows = 64;

struct Layer {
  std::unique_ptr<Arena> arena;
  ops::PackedWeights packed;
};

ops::PackedWeights::Spec spec_of(int out, int in, DType dtype) {
  return {.name = "weights/bench", .out = out, .in = in, .bias = false, .stored = dtype};
}

/// Weights of layer `id` are random tensor `id`.
std::shared_ptr<Layer> make_layer(const ops::PackedWeights::Spec& spec, uint32_t id) {
  MemoryPlan plan;
  ops::PackedWeights::plan(spec, plan);
  auto layer = std::make_shared<Layer>();
  layer->arena = std::make_unique<Arena>(plan);
  std::vector<std::byte> memory(ops::PackedWeights::staging_bytes(spec));
  ops::Staging staging({}, memory.data(), memory.size());
  layer->packed.load(
      spec, *layer->arena,
      [&](int64_t begin, int64_t end, void* to) {
        ops::fill_random(to, spec.input,
                         {.tensor = id, .first = begin * spec.in, .n = (end - begin) * spec.in});
      },
      {}, staging);
  return layer;
}

/// Some outputs of every row, recomputed in double from the weights' definition.
std::string check_layer(const OwnedTensor& y, const OwnedTensor& x,
                        const ops::PackedWeights::Spec& spec, uint32_t id) {
  const int64_t rows = x.view().rows();
  for (int64_t o = 0; o < spec.out; o += 1 + spec.out / 7) {
    const OwnedTensor w(spec.input, {spec.in});
    ops::fill_random(w.raw(), spec.input, {.tensor = id, .first = o * spec.in, .n = spec.in});
    for (int64_t r = 0; r < rows; r += 1 + rows / 5) {
      double sum = 0, norm = 0;
      for (int64_t i = 0; i < spec.in; ++i) {
        const double product = double{x.get(r * spec.in + i)} * w.get(i);
        sum += product;
        norm += product * product;
      }
      // f32 accumulation walks randomly: sqrt(n) steps of the partial sums' spacing, whose size is
      // sqrt(norm); six of that, then the rounding of the result.
      const double tolerance =
          6 * spacing(DType::f32) * std::sqrt(norm * static_cast<double>(spec.in)) +
          spacing(spec.input) * std::abs(sum);
      const double got = y.get(r * spec.out + o);
      if (!(std::abs(got - sum) <= tolerance))
        return fmt::format("row {}, output {} is {}, the reference gives {}", r, o, got, sum);
    }
  }
  return {};
}

PreparedCase prepare_linear(int rows, int out, int in, DType dtype, int copies) {
  const auto spec = spec_of(out, in, dtype);
  std::vector<std::shared_ptr<Layer>> layers;
  for (int i = 0; i < copies; ++i) layers.push_back(make_layer(spec, static_cast<uint32_t>(i)));
  const auto x = OwnedTensor::random(dtype, {rows, in}, 1000);
  const OwnedTensor y(dtype, {rows, out});
  const auto workspace =
      std::make_shared<std::vector<std::byte>>(ops::PackedWeights::workspace_bytes(spec, rows));
  const auto turn = std::make_shared<size_t>(0);
  PreparedCase prepared;
  prepared.run = [=] {
    ops::linear(y, x, layers[*turn]->packed, ops::Accumulate::no, *workspace, {});
    *turn = (*turn + 1) % layers.size();
  };
  prepared.mismatch = [=] {
    const size_t last = (*turn + layers.size() - 1) % layers.size();
    return check_layer(y, x, spec, static_cast<uint32_t>(last));
  };
  if (rows >= kComputeBoundRows) {
    const auto alone = std::make_shared<machine::OneDnnGemm>(
        rows, out, in, machine::OneDnnGemm::arithmetic(dtype));
    prepared.baseline = [=] { alone->run(); };
  }
  return prepared;
}

}  // namespace

KernelCases linear_cases(const KernelShapes& s) {
  struct Shape {
    const char* name;
    int out, in;
  };
  const Shape shapes[] = {{"qkv", (s.n_heads + 2 * s.n_kv_heads) * s.head_dim, s.dim},
                          {"gate_up", 2 * s.ffn_dim, s.dim},
                          {"down", s.dim, s.ffn_dim}};
  KernelCases cases;
  const DType dtype = s.act();
  for (const int64_t n : s.rows)
    for (const Shape& shape : shapes) {
      const int rows = static_cast<int>(n);
      const size_t weights = matrix_bytes(dtype, shape.out, shape.in);
      const int copies = rows < kComputeBoundRows ? rotating_copies(weights) : 1;
      // oneDNN's weights, twice while they are packed.
      const size_t alone = weights / dtype_bytes(dtype) * 2 *
                           dtype_bytes(machine::OneDnnGemm::arithmetic(dtype)) *
                           size_t{copies == 1};
      const double moved = static_cast<double>(rows) * (shape.in + shape.out) *
                           static_cast<double>(dtype_bytes(dtype));
      cases.push_back(
          {.family = "linear",
           .name = fmt::format("linear {}", shape.name),
           .shape = fmt::format("{} x {} -> {}", rows, shape.in, shape.out),
           .dtype = dtype,
           .work = {.bytes = static_cast<double>(weights) + moved,
                    .flops = 2.0 * rows * shape.in * shape.out},
           .memory_bytes =
               weights * static_cast<size_t>(copies) + alone + static_cast<size_t>(moved),
           .rotates = copies > 1,
           .baseline_name = machine::OneDnnGemm::name(dtype),
           .prepare = [=] { return prepare_linear(rows, shape.out, shape.in, dtype, copies); }});
    }
  return cases;
}

}  // namespace tandem::bench
