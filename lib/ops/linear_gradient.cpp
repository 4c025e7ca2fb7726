#include "ops/linear_gradient.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "base/convert.h"
#include "base/cpu_features.h"
#include "base/parallel.h"
#include "ops/linear_device.h"
#include "ops/loading.h"
#include "ops/onednn.h"

namespace tandem::ops {
namespace {

using dnnl::matmul;
using dnnl::memory;

/// Whether oneDNN multiplies numbers of a type as they are; else they are widened to f32 before.
bool multiplies(DType dtype) { return dtype == DType::f32 || isa_in_use() >= Isa::avx512_bf16; }

size_t widened_bytes(int64_t elements, DType dtype) {
  return multiplies(dtype) ? 0 : static_cast<size_t>(elements) * sizeof(float);
}

/// Bytes of the buffers' ends and of oneDNN's scratchpad, about.
constexpr size_t kSlack = size_t{1} << 20;

/// c (+)= a b.
struct Product {
  int64_t m, n, k;
  bool a_transposed;  // a is the transpose of a [k, m] matrix
  DType type;         // of a and b
  DType c_type;
  bool accumulate;
  auto operator<=>(const Product&) const = default;

  matmul::primitive_desc describe() const {
    const memory::desc a =
        a_transposed ? onednn::column_major(m, k, type) : onednn::row_major(m, k, type);
    return {matmul::desc(a, onednn::row_major(k, n, type), onednn::row_major(m, n, c_type)),
            onednn::attributes(accumulate), onednn::engine()};
  }
};

/// The part of a workspace that is not taken yet.
class Workspace {
 public:
  explicit Workspace(std::span<std::byte> memory) : rest_(memory) {}

  /// Empty if there is too little.
  std::span<std::byte> take(size_t bytes) {
    constexpr size_t kAlign = 64;
    const size_t taken = (bytes + kAlign - 1) / kAlign * kAlign;
    if (taken > rest_.size()) return {};
    const std::span<std::byte> mine = rest_.first(taken);
    rest_ = rest_.subspan(taken);
    return mine;
  }

  /// The numbers of a tensor in a type that oneDNN multiplies.
  void* multiplied(const void* x, DType dtype, int64_t n) {
    if (multiplies(dtype)) return const_cast<void*>(x);
    void* wide = required(static_cast<size_t>(n) * sizeof(float)).data();
    convert(wide, DType::f32, x, dtype, n);
    return wide;
  }

  std::span<std::byte> required(size_t bytes) {
    const std::span<std::byte> mine = take(bytes);
    TANDEM_CHECK(mine.size() >= bytes, "{} bytes of workspace, {} are left", bytes, rest_.size());
    return mine;
  }

 private:
  std::span<std::byte> rest_;
};

struct Primitive {
  matmul::primitive_desc desc;
  matmul run;
};

const Primitive& primitive(const Product& p) {
  static std::map<std::pair<Product, int>, Primitive> made;
  const std::pair key{p, max_threads()};
  if (const auto it = made.find(key); it != made.end()) return it->second;
  if (made.size() >= onednn::kMaxPrimitives) made.clear();
  const matmul::primitive_desc pd = p.describe();
  return made.emplace(key, Primitive{pd, matmul(pd)}).first->second;
}

void multiply(const Product& product, void* c, void* a, void* b, Workspace& workspace) {
  const Primitive& p = primitive(product);
  const memory::desc scratch_desc = p.desc.scratchpad_desc();
  const std::span<std::byte> mine = workspace.take(scratch_desc.get_size());
  memory scratch = mine.size() >= scratch_desc.get_size()
                       ? memory(scratch_desc, onednn::engine(), mine.data())
                       : memory(scratch_desc, onednn::engine());
  p.run.execute(onednn::stream(),
                {{DNNL_ARG_SRC, memory(p.desc.src_desc(), onednn::engine(), a)},
                 {DNNL_ARG_WEIGHTS, memory(p.desc.weights_desc(), onednn::engine(), b)},
                 {DNNL_ARG_DST, memory(p.desc.dst_desc(), onednn::engine(), c)},
                 {DNNL_ARG_SCRATCHPAD, scratch}});
  onednn::stream().wait();
}

/// Rows of trainable weights.
std::byte* rows_of(const PackedWeights& w) {
  const PackedWeights::State& s = w.state();
  void* rows = s.cpu ? linear_cpu::rows(*s.cpu) : nullptr;
  TANDEM_CHECK(rows != nullptr, "{}: not trainable", s.spec.name);
  return static_cast<std::byte*>(rows);
}

void check_values(size_t values, int64_t n, int64_t of_each, const PackedWeights& w) {
  TANDEM_CHECK(static_cast<int64_t>(values) == n * of_each, "{}: {} values for {} times {}",
               w.state().spec.name, values, n, of_each);
}

/// Calls visit(row of the weights, the row's values at the columns).
template <class T, class Visit>
void each_row_at(const PackedWeights& w, std::span<const int32_t> columns, const Visit& visit) {
  T* const rows = reinterpret_cast<T*>(rows_of(w));
  const auto n = static_cast<int64_t>(columns.size());
  parallel_ranges(static_cast<int>(w.out()), 64, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < n; ++c)
        visit(rows[r * w.in() + columns[static_cast<size_t>(c)]], static_cast<size_t>(r * n + c));
  });
}

/// Calls visit(element of the weights, its place in the list).
template <class T, class Visit>
void each_element(const PackedWeights& w, std::span<const int32_t> elements, const Visit& visit) {
  T* const all = reinterpret_cast<T*>(rows_of(w));
  for (size_t i = 0; i < elements.size(); ++i) visit(all[elements[i]], i);
}

void pack_all(PackedWeights& w) {
  linear_cpu::pack_rows(*w.state().cpu, [](int64_t, int64_t) { return true; });
}

}  // namespace

size_t input_gradient_workspace_bytes(const PackedWeights::Spec& spec, int64_t rows) {
  return widened_bytes(rows * (spec.out + spec.in) + spec.out * spec.in, spec.dtype) + kSlack;
}

size_t weight_gradient_workspace_bytes(int64_t n, int64_t m, DType dtype, int64_t rows) {
  return widened_bytes(rows * (n + m), dtype) + kSlack;
}

void linear_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                           Accumulate accumulate, std::span<std::byte> workspace,
                           Stream /*stream*/) {
  const PackedWeights::Spec& spec = w.state().spec;
  const bool add = accumulate == Accumulate::yes;
  TANDEM_CHECK(dy.dtype() == spec.dtype && dy.row_size() == spec.out && dx.rows() == dy.rows() &&
                   dx.row_size() == spec.in,
               "{}: gradients [{}, {}] of [{}, {}]", spec.name, dx.rows(), dx.row_size(), dy.rows(),
               dy.row_size());
  TANDEM_CHECK(dx.dtype() == DType::f32 || (dx.dtype() == spec.dtype && !add),
               "{}: input gradient {}", spec.name, dtype_name(dx.dtype()));
  if (dy.rows() == 0) return;
  Workspace left(workspace);
  void* const a = left.multiplied(dy.raw(), spec.dtype, dy.elements());
  void* const b = left.multiplied(rows_of(w), spec.dtype, spec.out * spec.in);
  const bool narrow = dx.dtype() == DType::bf16 && !multiplies(spec.dtype);
  void* const c =
      narrow ? left.required(static_cast<size_t>(dx.elements()) * sizeof(float)).data() : dx.raw();
  multiply({.m = dy.rows(),
            .n = spec.in,
            .k = spec.out,
            .a_transposed = false,
            .type = multiplies(spec.dtype) ? spec.dtype : DType::f32,
            .c_type = narrow ? DType::f32 : dx.dtype(),
            .accumulate = add},
           c, a, b, left);
  if (narrow) convert(dx.raw(), dx.dtype(), c, DType::f32, dx.elements());
}

void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x,
                            std::span<std::byte> workspace, Stream /*stream*/) {
  TANDEM_CHECK(dw.dtype() == DType::f32 && dw.rows() == dy.row_size() &&
                   dw.row_size() == x.row_size() && dy.rows() == x.rows() &&
                   dy.dtype() == x.dtype(),
               "weight gradient [{}, {}] of [{}, {}] and [{}, {}]", dw.rows(), dw.row_size(),
               dy.rows(), dy.row_size(), x.rows(), x.row_size());
  if (x.rows() == 0 || dw.elements() == 0) return;
  Workspace left(workspace);
  void* const a = left.multiplied(dy.raw(), dy.dtype(), dy.elements());
  void* const b = left.multiplied(x.raw(), x.dtype(), x.elements());
  multiply({.m = dw.rows(),
            .n = dw.row_size(),
            .k = x.rows(),
            .a_transposed = true,
            .type = multiplies(x.dtype()) ? x.dtype() : DType::f32,
            .c_type = DType::f32,
            .accumulate = true},
           dw.raw(), a, b, left);
}

const void* trainable_rows(const PackedWeights& w) { return rows_of(w); }

void read_rows(std::span<float> out, const PackedWeights& w, std::span<const int32_t> rows) {
  check_values(out.size(), static_cast<int64_t>(rows.size()), w.in(), w);
  const size_t bytes = static_cast<size_t>(w.in()) * dtype_bytes(w.dtype());
  for (size_t i = 0; i < rows.size(); ++i)
    convert(out.data() + static_cast<int64_t>(i) * w.in(), DType::f32,
            rows_of(w) + static_cast<size_t>(rows[i]) * bytes, w.dtype(), w.in());
}

void read_columns(std::span<float> out, const PackedWeights& w, std::span<const int32_t> columns) {
  check_values(out.size(), static_cast<int64_t>(columns.size()), w.out(), w);
  const auto read = [&](const auto& weight, size_t i) { out[i] = to_float(weight); };
  w.dtype() == DType::bf16 ? each_row_at<bf16>(w, columns, read)
                           : each_row_at<float>(w, columns, read);
}

void write_rows(PackedWeights& w, std::span<const int32_t> rows, std::span<const float> values) {
  check_values(values.size(), static_cast<int64_t>(rows.size()), w.in(), w);
  const size_t bytes = static_cast<size_t>(w.in()) * dtype_bytes(w.dtype());
  for (size_t i = 0; i < rows.size(); ++i)
    convert(rows_of(w) + static_cast<size_t>(rows[i]) * bytes, w.dtype(),
            values.data() + static_cast<int64_t>(i) * w.in(), DType::f32, w.in());
  std::vector<int32_t> sorted(rows.begin(), rows.end());
  std::ranges::sort(sorted);
  linear_cpu::pack_rows(*w.state().cpu, [&](int64_t begin, int64_t end) {
    const auto first = std::ranges::lower_bound(sorted, begin);
    return first != sorted.end() && *first < end;
  });
}

void write_columns(PackedWeights& w, std::span<const int32_t> columns,
                   std::span<const float> values) {
  check_values(values.size(), static_cast<int64_t>(columns.size()), w.out(), w);
  if (columns.empty()) return;
  if (w.dtype() == DType::bf16)
    each_row_at<bf16>(w, columns, [&](bf16& weight, size_t i) { weight = to_bf16(values[i]); });
  else
    each_row_at<float>(w, columns, [&](float& weight, size_t i) { weight = values[i]; });
  pack_all(w);
}

void read_elements(std::span<float> out, const PackedWeights& w,
                   std::span<const int32_t> elements) {
  check_values(out.size(), static_cast<int64_t>(elements.size()), 1, w);
  const auto read = [&](const auto& weight, size_t i) { out[i] = to_float(weight); };
  w.dtype() == DType::bf16 ? each_element<bf16>(w, elements, read)
                           : each_element<float>(w, elements, read);
}

void write_elements(PackedWeights& w, std::span<const int32_t> elements,
                    std::span<const float> values) {
  check_values(values.size(), static_cast<int64_t>(elements.size()), 1, w);
  if (w.dtype() == DType::bf16)
    each_element<bf16>(w, elements, [&](bf16& weight, size_t i) { weight = to_bf16(values[i]); });
  else
    each_element<float>(w, elements, [&](float& weight, size_t i) { weight = values[i]; });
  pack_all(w);
}

}  // namespace tandem::ops
