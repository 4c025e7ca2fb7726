// Dense layers in bf16 on CPUs that multiply it: oneDNN on weights in its packed layout.

#include "ops/linear_onednn.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ops/onednn.h"

namespace tandem::ops {
namespace {

using dnnl::matmul;
using dnnl::memory;
using onednn::column_major;
using onednn::engine;
using onednn::kMaxPrimitives;
using onednn::row_major;
using onednn::stream;

// Row count whose preferred weight layout is used for every row count.
constexpr int64_t kLayoutRows = 512;
// Weight rows that one packing step stages, at most, unless a block of the layout is larger.
constexpr int64_t kPackRows = 256;
matmul::primitive_desc describe(const PackedWeights::Spec& spec, const memory::desc& weights,
                                int64_t rows, DType out, bool accumulate) {
  const dnnl::primitive_attr attr = onednn::attributes(accumulate);
  const memory::desc x = row_major(rows, spec.in, spec.dtype), y = row_major(rows, spec.out, out);
  if (!spec.bias) return {matmul::desc(x, weights, y), attr, engine()};
  return {matmul::desc(x, weights, row_major(1, spec.out, DType::f32), y), attr, engine()};
}

memory::desc packed_layout(const PackedWeights::Spec& spec) {
  const memory::desc any({spec.in, spec.out}, onednn::type_of(spec.dtype), memory::format_tag::any);
  return describe(spec, any, kLayoutRows, DType::f32, false).weights_desc();
}

}  // namespace

struct OneDnnLinear {
  struct Primitive {
    matmul::primitive_desc desc;
    matmul run;
  };
  using Key = std::tuple<int64_t, DType, bool>;  // rows, output dtype, accumulate

  PackedWeights::Spec spec;
  memory::desc layout;
  memory weights;
  memory bias;
  std::map<Key, Primitive> primitives;

  const Primitive& primitive(int64_t rows, DType out, bool accumulate) {
    const Key key{rows, out, accumulate};
    if (const auto it = primitives.find(key); it != primitives.end()) return it->second;
    if (primitives.size() >= kMaxPrimitives) primitives.clear();
    matmul::primitive_desc pd = describe(spec, layout, rows, out, accumulate);
    return primitives.emplace(key, Primitive{pd, matmul(pd)}).first->second;
  }
};

namespace linear_onednn {

size_t bytes(const PackedWeights::Spec& spec) { return packed_layout(spec).get_size(); }

// Parts of a packed layout begin on its blocks of the output dimension, whose size (16 to 64) the
// library chooses by shape and threads.
int64_t rows_a_step(const PackedWeights::Spec& spec) {
  const dnnl_blocking_desc_t blocks = packed_layout(spec).data.format_desc.blocking;
  int64_t block = 1;
  for (int i = 0; i < blocks.inner_nblks; ++i)
    if (blocks.inner_idxs[i] == 1) block *= blocks.inner_blks[i];
  return std::max(block, kPackRows / block * block);
}

std::shared_ptr<OneDnnLinear> load(const PackedWeights::Spec& spec, void* weights, float* bias,
                                   const PackedWeights::RowSource& rows, void* staging) {
  auto loaded = std::make_shared<OneDnnLinear>();
  OneDnnLinear& s = *loaded;
  s.spec = spec;
  s.layout = packed_layout(spec);
  s.weights = memory(s.layout, engine(), weights);
  if (spec.bias) s.bias = memory(row_major(1, spec.out, DType::f32), engine(), bias);
  const int64_t step = rows_a_step(spec);
  for (int64_t begin = 0; begin < spec.out; begin += step) {
    const int64_t n = std::min(step, spec.out - begin);
    rows(begin, begin + n, staging);
    pack(s, begin, n, staging);
  }
  return loaded;
}

void pack(OneDnnLinear& s, int64_t begin, int64_t n, void* rows) {
  const int64_t in = s.spec.in;
  const memory::desc to = s.layout.submemory_desc({in, n}, {0, begin});
  memory source(column_major(in, n, s.spec.dtype), engine(), rows);
  memory target(to, engine(), s.weights.get_data_handle());
  dnnl::reorder(source, target).execute(stream(), source, target);
  stream().wait();
}

size_t workspace_bytes(const PackedWeights::Spec& spec, int64_t max_rows) {
  const memory::desc layout = packed_layout(spec);
  size_t bytes = 0;
  // The scratchpad's size is not monotonic in the row count: ask at the powers of two below.
  for (int64_t rows = max_rows; rows > 0; rows /= 2)
    for (const bool accumulate : {false, true})
      bytes = std::max(
          bytes, describe(spec, layout, rows, DType::f32, accumulate).scratchpad_desc().get_size());
  return bytes;
}

void run(const Tensor& y, const Tensor& x, OneDnnLinear& s, bool accumulate,
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

}  // namespace linear_onednn

}  // namespace tandem::ops
