// Dense layers on the CPU: our own product on weights in panels, or oneDNN's of many rows.

#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"
#include "kernels/linear/decode_linear.h"
#include "kernels/linear/packed_linear_cpu.h"
#include "ops/linear_device.h"
#include "ops/linear_onednn.h"

namespace tandem::ops {
namespace {

// Weight rows that one packing step stages, a multiple of every kernel's panel.
constexpr int64_t kPackRows = 256;

// Below this many multiply-adds sharing a product costs more than it saves.
constexpr int64_t kAloneWork = 1 << 16;

/// Where the CPU multiplies bf16, its weights lie in panels of pairs: decode_linear reads them for
/// few rows, oneDNN for many. All other arithmetic is in f32, where our own product is as fast
/// and gives a row the same bits in any company.
bool by_pairs(DType dtype) { return dtype == DType::bf16 && isa_in_use() >= Isa::avx512_bf16; }

const PackedLinearKernel& kernel() { return *cpu_table().packed_linear; }

size_t weight_bytes(const PackedWeights::Spec& spec) {
  if (by_pairs(spec.input))
    return static_cast<size_t>((spec.out + kPairPanel - 1) / kPairPanel *
                               pair_panel_bytes(spec.in));
  return packed_weights_bytes(kernel(), spec.out, spec.in, spec.input);
}

size_t row_bytes(const PackedWeights::Spec& spec) {
  return tandem::row_bytes(spec.stored, spec.in);
}

/// Packs rows [begin, begin + n) into their panels; begin is a multiple of the panel's outputs, and
/// so is n but at the matrix's end.
void pack(const PackedWeights::Spec& spec, void* panels, int64_t begin, int64_t n,
          const void* rows) {
  if (by_pairs(spec.input)) {
    const PackPairsParams p{
        .panels = static_cast<bf16*>(panels) +
                  begin / kPairPanel * (pair_panel_bytes(spec.in) / int64_t{sizeof(bf16)}),
        .rows = static_cast<const bf16*>(rows),
        .n_rows = static_cast<int>(n),
        .in = static_cast<int>(spec.in)};
    return parallel_for(static_cast<int>((n + kPairPanel - 1) / kPairPanel), [&](int panel) {
      pack_pairs(p, {panel, panel + 1});
    });
  }
  const int outputs = kernel().panel_outputs;
  const PackWeightsParams p{
      .panels = static_cast<std::byte*>(panels) + static_cast<size_t>(begin) * row_bytes(spec),
      .rows = rows,
      .n_rows = static_cast<int>(n),
      .in = static_cast<int>(spec.in),
      .type = spec.input};
  parallel_for(static_cast<int>((n + outputs - 1) / outputs), [&](int panel) {
    kernel().pack_weights(p, {panel, panel + 1});
  });
}

/// y (+)= x w^T + bias of few rows, on weights in panels of pairs.
void decode(const DecodeLinearParams& p) {
  // Items of a task: few, so that threads end together, and eight at most.
  constexpr int kTasksPerThread = 4, kMostItems = 8;
  const int threads = int64_t{p.rows} * p.in * p.out < kAloneWork ? 1 : max_threads();
  const int items = (p.out + kPairItem - 1) / kPairItem;
  const int each = std::clamp(items / (kTasksPerThread * threads), 1, kMostItems);
  parallel_for((items + each - 1) / each, threads, [&](int task) {
    cpu_table().decode_linear(p, {task * each, std::min((task + 1) * each, items)});
  });
}

std::string rows_name(const PackedWeights::Spec& spec) { return spec.name + ".rows"; }
std::string inputs_name(const PackedWeights::Spec& spec) { return spec.name + ".by_input"; }

/// Rows [begin, end) of the matrix [out, in], to where they are columns of [in, out].
template <class T>
void transpose(const PackedWeights::Spec& spec, int64_t begin, int64_t end, const void* rows,
               void* by_input) {
  constexpr int kInputs = 64;  // of a piece: its part of a row is a line or two
  const T* const from = static_cast<const T*>(rows);
  T* const to = static_cast<T*>(by_input) + begin;
  parallel_ranges(static_cast<int>(spec.in), kInputs, [&](int first, int last) {
    for (int64_t block = first; block < last; block += kInputs)
      for (int64_t r = 0; r < end - begin; ++r)
        for (int64_t i = block; i < std::min<int64_t>(block + kInputs, last); ++i)
          to[i * spec.out + r] = from[r * spec.in + i];
  });
}

}  // namespace

struct CpuLinear {
  PackedWeights::Spec spec;
  void* weights = nullptr;
  float* bias = nullptr;
  std::shared_ptr<OneDnnLinear> onednn;  // of weights in panels of pairs
  std::byte* rows = nullptr;             // [out, in], of trainable weights
  std::byte* by_input = nullptr;         // [in, out], of weights by input
};

namespace linear_cpu {

void plan(const PackedWeights::Spec& spec, MemoryPlan& plan) {
  plan.add(spec.name, weight_bytes(spec));
  if (spec.trainable) plan.add(rows_name(spec), static_cast<size_t>(spec.out) * row_bytes(spec));
  if (spec.by_input) plan.add(inputs_name(spec), static_cast<size_t>(spec.out) * row_bytes(spec));
  if (spec.bias) plan.add(spec.name + ".bias", static_cast<size_t>(spec.out) * sizeof(float));
}

size_t staging_bytes(const PackedWeights::Spec& spec) {
  return static_cast<size_t>(std::min(kPackRows, spec.out)) * row_bytes(spec);
}

std::shared_ptr<CpuLinear> load(const PackedWeights::Spec& spec, Arena& arena,
                                const PackedWeights::RowSource& rows, std::span<const float> bias,
                                void* staging) {
  auto loaded = std::make_shared<CpuLinear>();
  CpuLinear& s = *loaded;
  s.spec = spec;
  s.weights = arena.take(spec.name);
  if (spec.bias) {
    s.bias = static_cast<float*>(arena.take(spec.name + ".bias"));
    std::memcpy(s.bias, bias.data(), bias.size_bytes());
  }
  if (spec.trainable) s.rows = static_cast<std::byte*>(arena.take(rows_name(spec)));
  if (spec.by_input) s.by_input = static_cast<std::byte*>(arena.take(inputs_name(spec)));
  const auto staged = [&](int64_t begin, int64_t end, void* to) {
    rows(begin, end, to);
    if (s.by_input != nullptr)
      (spec.input == DType::bf16 ? transpose<bf16> : transpose<float>)(spec, begin, end, to,
                                                                       s.by_input);
    if (s.rows != nullptr)
      std::memcpy(s.rows + static_cast<size_t>(begin) * row_bytes(spec), to,
                  static_cast<size_t>(end - begin) * row_bytes(spec));
  };
  if (by_pairs(spec.input))
    s.onednn = linear_onednn::make(spec, static_cast<bf16*>(s.weights), s.bias);
  for (int64_t begin = 0; begin < spec.out; begin += kPackRows) {
    const int64_t n = std::min(kPackRows, spec.out - begin);
    staged(begin, begin + n, staging);
    pack(spec, s.weights, begin, n, staging);
  }
  return loaded;
}

void* rows(const CpuLinear& w) { return w.rows; }
void* input_rows(const CpuLinear& w) { return w.by_input; }
float* bias(const CpuLinear& w) { return w.bias; }

void pack_rows(CpuLinear& w, const std::function<bool(int64_t begin, int64_t end)>& changed) {
  TANDEM_CHECK(w.by_input == nullptr, "{}: weights stored by input cannot be changed", w.spec.name);
  for (int64_t begin = 0; begin < w.spec.out; begin += kPackRows) {
    const int64_t n = std::min(kPackRows, w.spec.out - begin);
    if (changed(begin, begin + n))
      pack(w.spec, w.weights, begin, n, w.rows + static_cast<size_t>(begin) * row_bytes(w.spec));
  }
}

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows) {
  if (by_pairs(spec.input)) return linear_onednn::workspace_bytes(spec, max_rows);
  return packed_linear_workspace_bytes(kernel(), max_rows, spec.in, spec.input, max_threads());
}

void run(const Tensor& y, const Tensor& x, CpuLinear& s, bool accumulate,
         std::span<std::byte> workspace) {
  if (s.onednn && x.rows() > kDecodeRows)
    return linear_onednn::run(y, x, *s.onednn, accumulate, workspace);
  if (s.onednn)
    return decode({.y = y.raw(),
                   .x = static_cast<const bf16*>(x.raw()),
                   .w = static_cast<const bf16*>(s.weights),
                   .bias = s.bias,
                   .rows = static_cast<int>(x.rows()),
                   .out = static_cast<int>(s.spec.out),
                   .in = static_cast<int>(s.spec.in),
                   .y_type = y.dtype(),
                   .accumulate = accumulate});
  const PackedLinearParams p{.y = y.raw(),
                             .x = x.raw(),
                             .w = s.weights,
                             .bias = s.bias,
                             .rows = static_cast<int>(x.rows()),
                             .out = static_cast<int>(s.spec.out),
                             .in = static_cast<int>(s.spec.in),
                             .type = s.spec.input,
                             .y_type = y.dtype(),
                             .accumulate = accumulate};
  packed_linear_with(kernel(), p, workspace.data(), max_threads());
}

bool warm_up(DType dtype) {
  static std::set<std::pair<DType, int>> done;
  if (!done.insert({dtype, max_threads()}).second) return false;
  constexpr int64_t kSize = 64;
  const PackedWeights::Spec spec{
      .name = "weights/warm_up", .out = kSize, .in = kSize, .stored = dtype};
  const size_t operand = static_cast<size_t>(kSize * kSize) * sizeof(float);
  MemoryPlan plan;
  PackedWeights::plan(spec, plan);
  plan.add("staging", PackedWeights::staging_bytes(spec));
  plan.add("x", operand);
  plan.add("y", operand);
  plan.add("workspace", PackedWeights::workspace_bytes(spec, kSize));
  Arena arena(plan);
  PackedWeights weights;
  Staging staging({}, arena.take("staging"), plan.find("staging")->bytes);
  weights.load(
      spec, arena, [](int64_t, int64_t, void*) {}, {}, staging);
  const Tensor x(arena.take("x"), dtype, {kSize, kSize});
  const Tensor y(arena.take("y"), DType::f32, {kSize, kSize});
  std::byte* workspace = static_cast<std::byte*>(arena.take("workspace"));
  linear(y, x, weights, Accumulate::no, {workspace, plan.find("workspace")->bytes}, {});
  return true;
}

}  // namespace linear_cpu

}  // namespace tandem::ops
