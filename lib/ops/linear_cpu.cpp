// Dense layers on the CPU: oneDNN on weights in its packed layout.

#include <algorithm>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include "base/check.h"
#include "base/parallel.h"
#include "ops/linear_device.h"

namespace tandem::ops {
namespace {

using dnnl::matmul;
using dnnl::memory;

// Row count whose preferred weight layout is used for every row count.
constexpr int64_t kLayoutRows = 512;
// Weight rows that one packing step stages, at most, unless a block of the layout is larger.
constexpr int64_t kPackRows = 256;
// Rows of a padded block where the library's result would depend on the number of rows.
constexpr int64_t kFixedRows = 16;
// Ragged prefills ask for many row counts; primitives are small but not free.
constexpr size_t kMaxPrimitives = 256;

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::stream& stream() {
  static dnnl::stream s(engine());
  return s;
}

memory::data_type onednn_type(DType t) {
  return t == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc row_major(int64_t rows, int64_t cols, DType t) {
  return {{rows, cols}, onednn_type(t), memory::format_tag::ab};
}

matmul::primitive_desc describe(const PackedWeights::Spec& spec, const memory::desc& weights,
                                int64_t rows, DType out, bool accumulate) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  const memory::desc x = row_major(rows, spec.in, spec.dtype), y = row_major(rows, spec.out, out);
  if (!spec.bias) return {matmul::desc(x, weights, y), attr, engine()};
  return {matmul::desc(x, weights, row_major(1, spec.out, DType::f32), y), attr, engine()};
}

memory::desc packed_layout(const PackedWeights::Spec& spec) {
  const memory::desc any({spec.in, spec.out}, onednn_type(spec.dtype), memory::format_tag::any);
  return describe(spec, any, kLayoutRows, DType::f32, false).weights_desc();
}

/// Rows of the [out, in] matrix that one packing step takes. Parts of a packed layout begin on its
/// blocks of the output dimension, whose size (16 to 64) the library chooses by shape and threads.
int64_t rows_a_step(const memory::desc& layout) {
  const dnnl_blocking_desc_t& blocks = layout.data.format_desc.blocking;
  int64_t block = 1;
  for (int i = 0; i < blocks.inner_nblks; ++i)
    if (blocks.inner_idxs[i] == 1) block *= blocks.inner_blks[i];
  return std::max(block, kPackRows / block * block);
}

/// True when the implementation gives each row the same bits for every row count.
bool row_invariant(const matmul::primitive_desc& pd) {
  return std::string_view(pd.impl_info_str()).starts_with("brg:avx512_core");
}

}  // namespace

struct CpuLinear {
  struct Primitive {
    matmul::primitive_desc desc;
    matmul run;
  };
  using Key = std::tuple<int64_t, DType, bool>;  // rows, output dtype, accumulate

  PackedWeights::Spec spec;
  memory::desc layout;
  memory weights;
  memory bias;
  bool fixed_rows = false;
  std::map<Key, Primitive> primitives;

  const Primitive& primitive(int64_t rows, DType out, bool accumulate) {
    const Key key{rows, out, accumulate};
    if (const auto it = primitives.find(key); it != primitives.end()) return it->second;
    if (primitives.size() >= kMaxPrimitives) primitives.clear();
    matmul::primitive_desc pd = describe(spec, layout, rows, out, accumulate);
    return primitives.emplace(key, Primitive{pd, matmul(pd)}).first->second;
  }
};

namespace linear_cpu {

void plan(const PackedWeights::Spec& spec, MemoryPlan& plan) {
  plan.add(spec.name, packed_layout(spec).get_size());
  if (spec.bias) plan.add(spec.name + ".bias", static_cast<size_t>(spec.out) * sizeof(float));
}

size_t bytes(const CpuLinear& w) { return w.layout.get_size(); }

size_t staging_bytes(const PackedWeights::Spec& spec) {
  const int64_t rows = std::min(rows_a_step(packed_layout(spec)), spec.out);
  return static_cast<size_t>(rows * spec.in) * dtype_bytes(spec.dtype);
}

std::shared_ptr<CpuLinear> load(const PackedWeights::Spec& spec, Arena& arena,
                                const PackedWeights::RowSource& rows, std::span<const float> bias,
                                void* staging) {
  auto loaded = std::make_shared<CpuLinear>();
  CpuLinear& s = *loaded;
  s.spec = spec;
  s.layout = packed_layout(spec);
  s.weights = memory(s.layout, engine(), arena.take(spec.name));
  if (spec.bias) {
    void* p = arena.take(spec.name + ".bias");
    std::memcpy(p, bias.data(), bias.size_bytes());
    s.bias = memory(row_major(1, spec.out, DType::f32), engine(), p);
  }
  s.fixed_rows = spec.dtype == DType::f32 &&
                 !row_invariant(describe(spec, s.layout, kFixedRows, DType::f32, false));

  const int64_t step = rows_a_step(s.layout);
  for (int64_t begin = 0; begin < spec.out; begin += step) {
    const int64_t n = std::min(step, spec.out - begin);
    rows(begin, begin + n, staging);
    const memory::desc from({spec.in, n}, onednn_type(spec.dtype), memory::format_tag::ba);
    const memory::desc to = s.layout.submemory_desc({spec.in, n}, {0, begin});
    memory source(from, engine(), staging);
    memory target(to, engine(), s.weights.get_data_handle());
    dnnl::reorder(source, target).execute(stream(), source, target);
    stream().wait();
  }
  return loaded;
}

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows) {
  const memory::desc layout = packed_layout(spec);
  size_t bytes = 0;
  // The scratchpad's size is not monotonic in the row count: ask at the powers of two below.
  for (int64_t rows = max_rows; rows > 0; rows /= 2)
    for (const bool accumulate : {false, true})
      bytes = std::max(
          bytes, describe(spec, layout, rows, DType::f32, accumulate).scratchpad_desc().get_size());
  const auto fixed = static_cast<size_t>(kFixedRows * (spec.in + spec.out)) * sizeof(float);
  return bytes + fixed;
}

namespace {

void run_rows(const Tensor& y, const Tensor& x, CpuLinear& s, bool accumulate,
              std::span<std::byte> workspace) {
  const auto& p = s.primitive(x.rows(), y.dtype(), accumulate);
  memory source(p.desc.src_desc(), engine(), x.raw());
  memory target(p.desc.dst_desc(), engine(), y.raw());
  const memory::desc scratch_desc = p.desc.scratchpad_desc();
  // Rare row counts may ask for more than the plan's sample of them: a few KiB, taken for the call.
  memory scratch = scratch_desc.get_size() <= workspace.size()
                       ? memory(scratch_desc, engine(), workspace.data())
                       : memory(scratch_desc, engine());
  std::unordered_map<int, memory> args{{DNNL_ARG_SRC, source},
                                       {DNNL_ARG_WEIGHTS, s.weights},
                                       {DNNL_ARG_DST, target},
                                       {DNNL_ARG_SCRATCHPAD, scratch}};
  if (s.spec.bias) args.emplace(DNNL_ARG_BIAS, s.bias);
  p.run.execute(stream(), args);
  stream().wait();
}

}  // namespace

void run(const Tensor& y, const Tensor& x, CpuLinear& s, bool accumulate,
         std::span<std::byte> workspace) {
  if (!s.fixed_rows) return run_rows(y, x, s, accumulate, workspace);

  // f32 without row-invariant kernels: every call sees 16 rows, the last block padded with zeros.
  float* pad_x = reinterpret_cast<float*>(workspace.data());
  float* pad_y = pad_x + kFixedRows * s.spec.in;
  const size_t used = static_cast<size_t>(kFixedRows * (s.spec.in + s.spec.out)) * sizeof(float);
  for (int64_t begin = 0; begin < x.rows(); begin += kFixedRows) {
    const int64_t n = std::min(kFixedRows, x.rows() - begin);
    if (n == kFixedRows) {
      run_rows(y.slice(begin, n), x.slice(begin, n), s, accumulate, workspace.subspan(used));
      continue;
    }
    const Tensor px(pad_x, DType::f32, {kFixedRows, s.spec.in});
    const Tensor py(pad_y, DType::f32, {kFixedRows, s.spec.out});
    std::memset(pad_x, 0, used);
    std::memcpy(pad_x, x.slice(begin, n).raw(), x.slice(begin, n).bytes());
    if (accumulate) std::memcpy(pad_y, y.slice(begin, n).raw(), y.slice(begin, n).bytes());
    run_rows(py, px, s, accumulate, workspace.subspan(used));
    std::memcpy(y.slice(begin, n).raw(), pad_y, y.slice(begin, n).bytes());
  }
}

bool warm_up(DType dtype) {
  static std::set<std::pair<DType, int>> done;
  if (!done.insert({dtype, max_threads()}).second) return false;
  constexpr int64_t kSize = 64;
  const PackedWeights::Spec spec{
      .name = "weights/warm_up", .out = kSize, .in = kSize, .dtype = dtype};
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
