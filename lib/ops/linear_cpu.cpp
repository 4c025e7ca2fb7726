// Dense layers on the CPU: how their weights lie, and which products run on them.

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"
#include "kernels/linear/decode_linear.h"
#include "kernels/linear/packed_linear_cpu.h"
#include "kernels/linear/quantized_linear_cpu.h"
#include "ops/frozen_codes.h"
#include "ops/linear_device.h"

namespace tandem::ops {
namespace linear_cpu {

using Spec = PackedWeights::Spec;

/// Panels that hold a matrix; the last one is filled up with zeros.
struct Layout {
  int (*panel_outputs)();
  size_t (*bytes)(const Spec&, int64_t out);
  void (*pack)(const Spec&, void* panels, const void* rows, int64_t n_rows, Range);
};

struct Part;

/// A product that reads such panels.
struct Body {
  TakesFormat* takes;
  Isa isa;  // the weakest that has it
  const Layout* layout;
  int64_t most_rows;
  size_t (*workspace)(const Spec&, int64_t max_rows);
  void (*run)(const Operands&, Part&, bool accumulate);
  bool strided;  // writes some columns of y
};

/// Rows of one format.
struct Part {
  Spec spec;
  std::vector<const Body*> bodies;
  int64_t first = 0;  // row of the matrix
  std::byte* weights = nullptr;
  float* bias = nullptr;
  std::shared_ptr<OneDnnLinear> onednn = {};  // once it has run
};

}  // namespace linear_cpu

struct CpuLinear {
  PackedWeights::Spec spec;
  std::vector<linear_cpu::Part> parts;
  float* bias = nullptr;
  std::byte* rows = nullptr;                // [out, in], of trainable weights
  std::byte* by_input = nullptr;            // [in, out], of weights by input
  std::unique_ptr<FrozenCodes> codes = {};  // in place of parts
};

namespace {

using linear_cpu::Body, linear_cpu::Layout, linear_cpu::Part, linear_cpu::Spec;

// Weight rows that one packing step stages, a multiple of every kernel's panel.
constexpr int64_t kPackRows = 256;

const PackedLinearKernel& kernel() { return *cpu_table().packed_linear; }

size_t no_workspace(const Spec&, int64_t) { return 0; }

/// Returns the place of a part's outputs in the first row of y.
void* outputs_of(const Operands& at, const Part& w) {
  return static_cast<std::byte*>(at.y.raw()) +
         static_cast<size_t>(w.first) * dtype_bytes(at.y.dtype());
}

void run_decode(const Operands& at, Part& w, bool accumulate) {
  const DecodeLinearParams p{.y = at.y.raw(),
                             .x = static_cast<const bf16*>(at.x.raw()),
                             .w = reinterpret_cast<const bf16*>(w.weights),
                             .bias = w.bias,
                             .rows = static_cast<int>(at.x.rows()),
                             .out = static_cast<int>(w.spec.out),
                             .in = static_cast<int>(w.spec.in),
                             .y_type = at.y.dtype(),
                             .accumulate = accumulate};
  // Items of a task: few, so that threads end together, and eight at most.
  constexpr int kTasksPerThread = 4, kMostItems = 8;
  const int threads = int64_t{p.rows} * p.in * p.out < kAloneWork ? 1 : max_threads();
  const int items = (p.out + kPairItem - 1) / kPairItem;
  const int each = std::clamp(items / (kTasksPerThread * threads), 1, kMostItems);
  parallel_for((items + each - 1) / each, threads, [&](int task) {
    cpu_table().decode_linear(p, {task * each, std::min((task + 1) * each, items)});
  });
}

void run_onednn(const Operands& at, Part& w, bool accumulate) {
  if (!w.onednn) w.onednn = linear_onednn::make(w.spec, reinterpret_cast<bf16*>(w.weights), w.bias);
  linear_onednn::run(at.y, at.x, *w.onednn, accumulate, at.workspace);
}

size_t panels_workspace(const Spec& spec, int64_t max_rows) {
  return packed_linear_workspace_bytes(kernel(), max_rows, spec.in, spec.input, max_threads());
}

PackedLinearParams panels_params(const Operands& at, const Part& w, bool accumulate) {
  return {.y = outputs_of(at, w),
          .x = at.x.raw(),
          .w = w.weights,
          .bias = w.bias,
          .rows = static_cast<int>(at.x.rows()),
          .out = static_cast<int>(w.spec.out),
          .in = static_cast<int>(w.spec.in),
          .y_stride = static_cast<int>(at.y.row_size()),
          .type = w.spec.input,
          .y_type = at.y.dtype(),
          .accumulate = accumulate};
}

void run_panels(const Operands& at, Part& w, bool accumulate) {
  packed_linear_with(kernel(), panels_params(at, w, accumulate), at.workspace.data(),
                     max_threads());
}

const QuantizedLinearKernel& coded_kernel() { return *cpu_table().quantized_linear; }

CodedMatrix coded(const Spec& s) {
  const WeightFormat& f = s.stored;
  return {.code = f.code,
          .scale = f.scale,
          .zero = f.zero,
          .group = f.group,
          .in = static_cast<int>(s.in)};
}

/// fp8 codes have their own product with inputs as they are.
bool multiplies_panels(const Spec& spec) {
  return spec.int8_inputs || spec.stored.code == Code::fp8;
}

size_t codes_workspace(const Spec& spec, int64_t max_rows) {
  return multiplies_panels(spec)
             ? quantized_linear_workspace_bytes(coded(spec), max_rows)
             : widened_linear_workspace_bytes(kernel(), max_rows, spec.in, max_threads());
}

void run_codes(const Operands& at, Part& w, bool accumulate) {
  const CodedMatrix matrix = coded(w.spec);
  const PackedLinearParams p = panels_params(at, w, accumulate);
  if (!multiplies_panels(w.spec)) {
    const auto widen = [&](int panel, float* to) {
      coded_kernel().widen(matrix, w.weights, {panel, panel + 1}, p.out, to);
    };
    return widened_linear_with(kernel(), p, widen, at.workspace.data(), max_threads());
  }
  const QuantizedLinearParams of_panels{.y = p.y,
                                        .x = p.x,
                                        .w = p.w,
                                        .bias = p.bias,
                                        .matrix = matrix,
                                        .rows = p.rows,
                                        .out = p.out,
                                        .y_stride = p.y_stride,
                                        .x_type = p.type,
                                        .y_type = p.y_type,
                                        .accumulate = accumulate};
  quantized_linear_with(coded_kernel(), of_panels, at.workspace.data(), max_threads());
}

constexpr Layout kPairs{
    [] { return kPairPanel; },
    [](const Spec& s, int64_t out) {
      return static_cast<size_t>((out + kPairPanel - 1) / kPairPanel * pair_panel_bytes(s.in));
    },
    [](const Spec& s, void* panels, const void* rows, int64_t n, Range range) {
      pack_pairs({static_cast<bf16*>(panels), static_cast<const bf16*>(rows), static_cast<int>(n),
                  static_cast<int>(s.in)},
                 range);
    }};
constexpr Layout kPanels{
    [] { return kernel().panel_outputs; },
    [](const Spec& s, int64_t out) { return packed_weights_bytes(kernel(), out, s.in, s.input); },
    [](const Spec& s, void* panels, const void* rows, int64_t n, Range range) {
      kernel().pack_weights({panels, rows, static_cast<int>(n), static_cast<int>(s.in), s.input},
                            range);
    }};

constexpr Layout kCodes{
    [] { return kCodePanel; },
    [](const Spec& s, int64_t out) {
      return static_cast<size_t>((out + kCodePanel - 1) / kCodePanel * coded(s).panel_bytes());
    },
    [](const Spec& s, void* panels, const void* rows, int64_t n, Range range) {
      pack_codes({panels, rows, coded(s), static_cast<int>(n)}, range);
    }};

/// Groups that are a half or some of an input's groups, or all of a row.
bool takes_codes(const WeightFormat& stored, DType input) {
  if (!is_coded(stored) || (input != DType::f32 && input != DType::bf16)) return false;
  if (stored.scale == ScaleType::two_level)
    return std::ranges::count(kTwoLevelBlocks,
                              TwoLevelBlock{stored.code, stored.zero, stored.group}) == 1;
  return (stored.group == kInputGroup / 2 || stored.group % kInputGroup == 0) &&
         (stored.code == Code::i4 || stored.code == Code::i8 ||
          (stored.code == Code::i5 && stored.group % kInputGroup == 0) ||
          (stored.code == Code::fp8 && stored.zero == Zero::none));
}

constexpr TakesFormat *kBf16 = takes_numbers<DType::bf16>, *kF32 = takes_numbers<DType::f32>;
constexpr int64_t kAnyRows = std::numeric_limits<int64_t>::max();

/// The first body that takes a format on this CPU decides on the layout; the first of that layout
/// whose most_rows suffice runs. CPUs that do not multiply bf16 compute in f32, where our own
/// product is as fast as oneDNN's and gives a row the same bits in any company.
constexpr Body kBodies[] = {
    {kBf16, Isa::avx512_bf16, &kPairs, kDecodeRows, no_workspace, run_decode, false},
    {kBf16, Isa::avx512_bf16, &kPairs, kAnyRows, linear_onednn::workspace_bytes, run_onednn, false},
    {kBf16, Isa::scalar, &kPanels, kAnyRows, panels_workspace, run_panels, true},
    {kF32, Isa::scalar, &kPanels, kAnyRows, panels_workspace, run_panels, true},
    {takes_codes, Isa::scalar, &kCodes, kAnyRows, codes_workspace, run_codes, true}};

/// whole    the spec is not a part of a larger matrix
std::vector<const Body*> bodies_of(const Spec& spec, bool whole) {
  std::vector<const Body*> found;
  for (const Body& b : kBodies)
    if (isa_in_use() >= b.isa && b.takes(spec.stored, spec.input) && (whole || b.strided) &&
        (found.empty() || found.front()->layout == b.layout))
      found.push_back(&b);
  check_taken(spec, !found.empty());
  return found;
}

bool is_frozen(const Spec& spec) { return spec.trainable && spec.has_codes(); }

/// The parts of a matrix, without their memory.
std::vector<Part> parts_of(const Spec& spec) {
  if (spec.stacked.empty()) return {{.spec = spec, .bodies = bodies_of(spec, true)}};
  TANDEM_CHECK(!spec.by_input, "{}: rows of several formats", spec.name);
  std::vector<Part> parts;
  int64_t first = 0;
  for (const Spec::Stacked& of : spec.stacked) {
    Spec part = spec;
    part.out = of.rows;
    part.stored = of.stored;
    part.stacked = {};
    parts.push_back({.spec = part, .bodies = bodies_of(part, false), .first = first});
    first += of.rows;
  }
  TANDEM_CHECK(first == spec.out, "{}: {} rows in parts of {}", spec.name, spec.out, first);
  return parts;
}

/// Bytes of a part's panels, a whole number of lines.
size_t panel_bytes(const Part& part) {
  return (part.bodies.front()->layout->bytes(part.spec, part.spec.out) + 63) / 64 * 64;
}

size_t rows_bytes(const Spec& spec, int64_t n) { return matrix_bytes(spec.stored, n, spec.in); }

/// Packs rows [begin, begin + n) of a part into their panels. A panel's outputs divide begin, and n
/// but at the part's end.
void pack(const Part& w, int64_t begin, int64_t n, const void* rows) {
  const Layout& layout = *w.bodies.front()->layout;
  std::byte* const panels = w.weights + layout.bytes(w.spec, begin);
  const int outputs = layout.panel_outputs();
  parallel_for(static_cast<int>((n + outputs - 1) / outputs), [&](int panel) {
    layout.pack(w.spec, panels, rows, n, {panel, panel + 1});
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

namespace linear_cpu {

void plan(const PackedWeights::Spec& spec, MemoryPlan& plan) {
  const bool frozen = is_frozen(spec);
  size_t bytes = 0;
  if (frozen)
    bytes = FrozenCodes::bytes(spec);
  else
    for (const Part& part : parts_of(spec)) bytes += panel_bytes(part);
  plan.add(spec.name, bytes);
  if (spec.trainable && !frozen) plan.add(rows_name(spec), rows_bytes(spec, spec.out));
  if (spec.by_input) plan.add(inputs_name(spec), rows_bytes(spec, spec.out));
  if (spec.bias) plan.add(spec.name + ".bias", static_cast<size_t>(spec.out) * sizeof(float));
}

size_t staging_bytes(const PackedWeights::Spec& spec) {
  if (is_frozen(spec)) return 64;  // rows are read in place, but no buffer is empty
  size_t bytes = 0;
  for (const Part& part : parts_of(spec))
    bytes = std::max(bytes, rows_bytes(part.spec, std::min(kPackRows, part.spec.out)));
  return bytes;
}

std::shared_ptr<CpuLinear> load(const PackedWeights::Spec& spec, Arena& arena,
                                const PackedWeights::RowSource& rows, std::span<const float> bias,
                                void* staging) {
  auto loaded = std::make_shared<CpuLinear>();
  CpuLinear& s = *loaded;
  s.spec = spec;
  auto* memory = static_cast<std::byte*>(arena.take(spec.name));
  if (spec.bias) {
    s.bias = static_cast<float*>(arena.take(spec.name + ".bias"));
    std::memcpy(s.bias, bias.data(), bias.size_bytes());
  }
  if (is_frozen(spec)) {
    s.codes = std::make_unique<FrozenCodes>(spec, memory);
    s.codes->load(rows, kPackRows);
    return loaded;
  }
  s.parts = parts_of(spec);
  if (spec.trainable) s.rows = static_cast<std::byte*>(arena.take(rows_name(spec)));
  if (spec.by_input) s.by_input = static_cast<std::byte*>(arena.take(inputs_name(spec)));
  const auto staged = [&](int64_t begin, int64_t end, void* to) {
    rows(begin, end, to);
    if (s.by_input != nullptr)
      (row_bytes(spec.stored, 1) == sizeof(bf16) ? transpose<bf16> : transpose<float>)(spec, begin,
                                                                                       end, to,
                                                                                       s.by_input);
    if (s.rows != nullptr)
      std::memcpy(s.rows + rows_bytes(spec, begin), to, rows_bytes(spec, end - begin));
  };
  for (Part& part : s.parts) {
    part.weights = memory;
    part.bias = s.bias == nullptr ? nullptr : s.bias + part.first;
    memory += panel_bytes(part);
    for (int64_t begin = 0; begin < part.spec.out; begin += kPackRows) {
      const int64_t n = std::min(kPackRows, part.spec.out - begin);
      staged(part.first + begin, part.first + begin + n, staging);
      pack(part, begin, n, staging);
    }
  }
  return loaded;
}

void* rows(const CpuLinear& w) { return w.rows; }
void* input_rows(const CpuLinear& w) { return w.by_input; }
float* bias(const CpuLinear& w) { return w.bias; }
FrozenCodes* codes(const CpuLinear& w) { return w.codes.get(); }

void pack_rows(CpuLinear& w, const std::function<bool(int64_t begin, int64_t end)>& changed) {
  TANDEM_CHECK(w.by_input == nullptr, "{}: weights stored by input cannot be changed", w.spec.name);
  for (int64_t begin = 0; begin < w.spec.out; begin += kPackRows) {
    const int64_t n = std::min(kPackRows, w.spec.out - begin);
    if (changed(begin, begin + n))
      pack(w.parts.front(), begin, n, w.rows + rows_bytes(w.spec, begin));
  }
}

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows) {
  if (is_frozen(spec)) return FrozenCodes::workspace_bytes(spec, max_rows);
  size_t bytes = 0;
  for (const Part& part : parts_of(spec))
    for (const Body* b : part.bodies) bytes = std::max(bytes, b->workspace(part.spec, max_rows));
  return bytes;
}

void run(const Operands& at, CpuLinear& w, bool accumulate) {
  if (w.codes) return w.codes->multiply(at, w.bias, accumulate);
  const auto fits = [&](const Body* b) { return at.x.rows() <= b->most_rows; };
  for (linear_cpu::Part& part : w.parts)
    (*std::ranges::find_if(part.bodies, fits))->run(at, part, accumulate);
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
