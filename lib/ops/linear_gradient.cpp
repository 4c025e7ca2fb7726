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

void check_values(size_t values, const PackedWeights& w, WeightPart part, size_t n) {
  const int64_t each = part == WeightPart::columns ? w.out() : part == WeightPart::rows ? w.in() : 1;
  const int64_t expected =
      part == WeightPart::all ? w.out() * w.in() : static_cast<int64_t>(n) * each;
  TANDEM_CHECK(static_cast<int64_t>(values) == expected, "{}: {} values of {}", w.state().spec.name,
               values, expected);
}

bool on_gpu(const PackedWeights& w) { return w.device().kind == Device::Kind::cuda; }

/// `values` are read or written.
WeightPartParams part_params(const PackedWeights& w, WeightPart part, const float* values,
                             std::span<const int32_t> index) {
  return {.weights = w.device_rows(),
          .values = const_cast<float*>(values),
          .index = index.data(),
          .out = w.out(),
          .in = w.in(),
          .n = static_cast<int64_t>(index.size()),
          .part = part,
          .act = w.dtype()};
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

void write_rows(PackedWeights& w, std::span<const int32_t> rows, const float* values) {
  const size_t bytes = static_cast<size_t>(w.in()) * dtype_bytes(w.dtype());
  for (size_t i = 0; i < rows.size(); ++i)
    convert(rows_of(w) + static_cast<size_t>(rows[i]) * bytes, w.dtype(),
            values + static_cast<int64_t>(i) * w.in(), DType::f32, w.in());
  std::vector<int32_t> sorted(rows.begin(), rows.end());
  std::ranges::sort(sorted);
  linear_cpu::pack_rows(*w.state().cpu, [&](int64_t begin, int64_t end) {
    const auto first = std::ranges::lower_bound(sorted, begin);
    return first != sorted.end() && *first < end;
  });
}

template <class T>
void write(PackedWeights& w, WeightPart part, std::span<const int32_t> index, const float* values) {
  const auto set = [&](T& weight, size_t i) {
    if constexpr (std::is_same_v<T, bf16>)
      weight = to_bf16(values[i]);
    else
      weight = values[i];
  };
  if (part == WeightPart::columns)
    each_row_at<T>(w, index, set);
  else
    each_element<T>(w, index, set);
}

template <class T>
void read(float* out, const PackedWeights& w, WeightPart part, std::span<const int32_t> index) {
  const auto get = [&](const T& weight, size_t i) { out[i] = to_float(weight); };
  if (part == WeightPart::columns)
    each_row_at<T>(w, index, get);
  else
    each_element<T>(w, index, get);
}

LinearProduct input_product(const Tensor& dx, const Tensor& dy, const PackedWeights& w, bool add) {
  return {.rows = dy.rows(),
          .out = w.out(),
          .in = w.in(),
          .dtype = w.dtype(),
          .y_type = dx.dtype(),
          .role = LinearRole::input_gradient,
          .accumulate = add};
}

LinearProduct weight_product(const Tensor& dw, const Tensor& dy, const Tensor& x) {
  return {.rows = x.rows(),
          .out = dw.rows(),
          .in = dw.row_size(),
          .dtype = x.dtype(),
          .y_type = DType::f32,
          .role = LinearRole::weight_gradient,
          .accumulate = true};
}

}  // namespace

size_t input_gradient_workspace_bytes(const PackedWeights::Spec& spec, int64_t rows) {
  if (spec.device.kind == Device::Kind::cuda) return linear_cuda::kWorkspaceBytes;
  return widened_bytes(rows * (spec.out + spec.in) + spec.out * spec.in, spec.dtype) + kSlack;
}

size_t weight_gradient_workspace_bytes(int64_t n, int64_t m, DType dtype, int64_t rows,
                                       Device device) {
  if (device.kind == Device::Kind::cuda) return linear_cuda::kWorkspaceBytes;
  return widened_bytes(rows * (n + m), dtype) + kSlack;
}

void linear_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                           Accumulate accumulate, std::span<std::byte> workspace, Stream stream) {
  const PackedWeights::Spec& spec = w.state().spec;
  const bool add = accumulate == Accumulate::yes;
  TANDEM_CHECK(dy.dtype() == spec.dtype && dy.row_size() == spec.out && dx.rows() == dy.rows() &&
                   dx.row_size() == spec.in,
               "{}: gradients [{}, {}] of [{}, {}]", spec.name, dx.rows(), dx.row_size(), dy.rows(),
               dy.row_size());
  TANDEM_CHECK(dx.dtype() == DType::f32 || (dx.dtype() == spec.dtype && !add),
               "{}: input gradient {}", spec.name, dtype_name(dx.dtype()));
  if (dy.rows() == 0) return;
  if (on_gpu(w))
    return linear_cuda::run_gradient(input_product(dx, dy, w, add), dx, dy.raw(), w.device_rows(),
                                     workspace, stream);
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
                            std::span<std::byte> workspace, Stream stream) {
  TANDEM_CHECK(dw.dtype() == DType::f32 && dw.rows() == dy.row_size() &&
                   dw.row_size() == x.row_size() && dy.rows() == x.rows() &&
                   dy.dtype() == x.dtype(),
               "weight gradient [{}, {}] of [{}, {}] and [{}, {}]", dw.rows(), dw.row_size(),
               dy.rows(), dy.row_size(), x.rows(), x.row_size());
  if (x.rows() == 0 || dw.elements() == 0) return;
  if (dw.device().kind == Device::Kind::cuda)
    return linear_cuda::run_gradient(weight_product(dw, dy, x), dw, x.raw(), dy.raw(), workspace,
                                     stream);
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

void tune_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                         std::span<std::byte> workspace, Stream stream) {
  if (!on_gpu(w)) return;
  linear_cuda::tune_gradient(input_product(dx, dy, w, false), dx, dy.raw(), w.device_rows(),
                             workspace, stream);
}

void tune_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x,
                          std::span<std::byte> workspace, Stream stream) {
  if (dw.device().kind != Device::Kind::cuda) return;
  linear_cuda::tune_gradient(weight_product(dw, dy, x), dw, x.raw(), dy.raw(), workspace, stream);
}

const void* trainable_rows(const PackedWeights& w) { return on_gpu(w) ? w.device_rows() : rows_of(w); }

void read_part(std::span<float> out, const PackedWeights& w, WeightPart part,
               std::span<const int32_t> index, Stream stream) {
  check_values(out.size(), w, part, index.size());
  if (on_gpu(w))
    return linear_cuda::read_part(part_params(w, part, out.data(), index), stream);
  const size_t bytes = static_cast<size_t>(w.in()) * dtype_bytes(w.dtype());
  if (part == WeightPart::all)
    convert(out.data(), DType::f32, rows_of(w), w.dtype(), w.out() * w.in());
  else if (part == WeightPart::rows)
    for (size_t i = 0; i < index.size(); ++i)
      convert(out.data() + static_cast<int64_t>(i) * w.in(), DType::f32,
              rows_of(w) + static_cast<size_t>(index[i]) * bytes, w.dtype(), w.in());
  else if (w.dtype() == DType::bf16)
    read<bf16>(out.data(), w, part, index);
  else
    read<float>(out.data(), w, part, index);
}

void write_part(PackedWeights& w, WeightPart part, std::span<const int32_t> index,
                std::span<const float> values, Stream stream) {
  check_values(values.size(), w, part, index.size());
  if (values.empty()) return;
  if (on_gpu(w))
    return linear_cuda::write_part(part_params(w, part, values.data(), index), stream);
  if (part == WeightPart::rows) return write_rows(w, index, values.data());
  if (part == WeightPart::all)
    convert(rows_of(w), w.dtype(), values.data(), DType::f32, w.out() * w.in());
  else if (w.dtype() == DType::bf16)
    write<bf16>(w, part, index, values.data());
  else
    write<float>(w, part, index, values.data());
  linear_cpu::pack_rows(*w.state().cpu, [](int64_t, int64_t) { return true; });
}

void read_bias(std::span<float> out, const PackedWeights& w, Stream stream) {
  convert(out.data(), DType::f32, w.bias(), DType::f32, w.out(), stream);
}

void write_bias(PackedWeights& w, std::span<const float> values, Stream stream) {
  convert(w.bias(), DType::f32, values.data(), DType::f32, w.out(), stream);
  if (on_gpu(w))
    convert(linear_cuda::rounded_bias(*w.state().cuda), DType::bf16, values.data(), DType::f32,
            w.out(), stream);
}

void* rows_in_place(PackedWeights& w) { return const_cast<void*>(trainable_rows(w)); }

void changed_in_place(PackedWeights& w, Stream stream) {
  if (!on_gpu(w)) return linear_cpu::pack_rows(*w.state().cpu, [](int64_t, int64_t) { return true; });
  if (w.bias() != nullptr)
    convert(linear_cuda::rounded_bias(*w.state().cuda), DType::bf16, w.bias(), DType::f32, w.out(),
            stream);
}

}  // namespace tandem::ops
