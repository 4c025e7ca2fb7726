#include "ops/linear_gradient.h"

#include <algorithm>

#include "base/check.h"
#include "base/convert.h"
#include "base/parallel.h"
#include "ops/frozen_codes.h"
#include "ops/linear_device.h"
#include "ops/loading.h"
#include "ops/matmul.h"
#include "ops/operation.h"
#include "tensor/cuda.h"

namespace tandem::ops {
namespace {

/// Rows of trainable weights.
std::byte* rows_of(const PackedWeights& w) {
  const PackedWeights::State& s = w.state();
  void* rows = s.cpu ? linear_cpu::rows(*s.cpu) : nullptr;
  TANDEM_CHECK(rows != nullptr, "{}: weights are not trainable", s.spec.name);
  return static_cast<std::byte*>(rows);
}

void check_values(size_t values, const PackedWeights& w, WeightPart part, size_t n) {
  const int64_t each = part == WeightPart::columns ? w.out()
                       : part == WeightPart::rows  ? w.in()
                                                   : 1;
  const int64_t expected =
      part == WeightPart::all ? w.out() * w.in() : static_cast<int64_t>(n) * each;
  TANDEM_CHECK(static_cast<int64_t>(values) == expected, "{}: found {} values, expected {}",
               w.state().spec.name, values, expected);
}

/// Codes on a CPU, else null.
FrozenCodes* codes_of(const PackedWeights& w) {
  const PackedWeights::State& s = w.state();
  return s.cpu ? linear_cpu::codes(*s.cpu) : nullptr;
}

bool on_gpu(const PackedWeights& w) { return w.device().kind == Device::Kind::cuda; }

/// Numbers of codes on a GPU that hold_part took.
bf16* held_of(const PackedWeights& w, WeightPart part) {
  bf16* const held = linear_cuda::held(*w.state().cuda, part);
  TANDEM_CHECK(held != nullptr, "{}: on a GPU only the held part of codes is read or changed",
               w.state().spec.name);
  return held;
}

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
  const size_t bytes = w.row_bytes();
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

MatmulArgs input_product(const Tensor& dx, const Tensor& dy, const PackedWeights& w, bool add) {
  return {.c = MatrixView(dx),
          .a = MatrixView(dy),
          .b = {const_cast<void*>(trainable_rows(w)), w.dtype(), w.out(), w.in(), w.device()},
          .accumulate = add};
}

MatmulArgs weight_product(const Tensor& dw, const Tensor& dy, const Tensor& x, bool add) {
  return {.c = MatrixView(dw),
          .a = MatrixView(dy),
          .b = MatrixView(x),
          .a_transposed = true,
          .accumulate = add};
}

}  // namespace

bool is_frozen(const PackedWeights& w) {
  return w.state().spec.trainable && w.state().spec.has_codes();
}

void hold_part(PackedWeights& w, WeightPart part, std::span<const int32_t> index, void* values,
               Stream stream) {
  TANDEM_CHECK(is_frozen(w), "{}: weights are no codes", w.state().spec.name);
  TANDEM_CHECK(part == WeightPart::rows || part == WeightPart::columns,
               "{}: only rows or columns of codes can be held as numbers", w.state().spec.name);
  if (on_gpu(w)) return linear_cuda::hold(*w.state().cuda, part, index, values, stream);
  codes_of(w)->hold(part, index, values);
}

size_t input_gradient_workspace_bytes(const PackedWeights::Spec& spec, int64_t rows) {
  return matmul_workspace_bytes(spec.input, rows * (spec.out + spec.in) + spec.out * spec.in,
                                spec.device);
}

size_t weight_gradient_workspace_bytes(int64_t n, int64_t m, DType dtype, int64_t rows,
                                       Device device) {
  return matmul_workspace_bytes(dtype, rows * (n + m), device);
}

void linear_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                           Accumulate accumulate, std::span<std::byte> workspace, Stream stream) {
  const PackedWeights::Spec& spec = w.state().spec;
  const bool add = accumulate == Accumulate::yes;
  TANDEM_CHECK(dy.dtype() == spec.input && dy.row_size() == spec.out && dx.rows() == dy.rows() &&
                   dx.row_size() == spec.in,
               "{}: dx [{}, {}] does not fit dy [{}, {}]", spec.name, dx.rows(), dx.row_size(),
               dy.rows(), dy.row_size());
  TANDEM_CHECK(dx.dtype() == DType::f32 || (dx.dtype() == spec.input && !add),
               "{}: unexpected dx of dtype {}", spec.name, dtype_name(dx.dtype()));
  if (dy.rows() == 0) return;
  if (const FrozenCodes* codes = codes_of(w)) return codes->input_gradient(dx, dy, add, workspace);
  if (is_frozen(w))
    return linear_cuda::input_gradient(dx, dy, *w.state().cuda, add, workspace, stream);
  matmul(input_product(dx, dy, w, add), workspace, stream);
}

void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x,
                            Accumulate accumulate, std::span<std::byte> workspace, Stream stream) {
  TANDEM_CHECK(dw.dtype() == DType::f32 && dw.rows() == dy.row_size() &&
                   dw.row_size() == x.row_size() && dy.rows() == x.rows() &&
                   dy.dtype() == x.dtype(),
               "weight gradient [{}, {}] does not fit dy [{}, {}] and x [{}, {}]", dw.rows(),
               dw.row_size(), dy.rows(), dy.row_size(), x.rows(), x.row_size());
  if (x.rows() == 0 || dw.elements() == 0) return;
  matmul(weight_product(dw, dy, x, accumulate == Accumulate::yes), workspace, stream);
}

void tune_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                         std::span<std::byte> workspace, Stream stream) {
  if (on_gpu(w) && is_frozen(w))
    return linear_cuda::tune_input_gradient(dx, dy, *w.state().cuda, workspace, stream);
  tune_matmul(input_product(dx, dy, w, false), workspace, stream);
}

void tune_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x,
                          Accumulate accumulate, std::span<std::byte> workspace, Stream stream) {
  tune_matmul(weight_product(dw, dy, x, accumulate == Accumulate::yes), workspace, stream);
}

const void* trainable_rows(const PackedWeights& w) {
  if (!on_gpu(w)) return rows_of(w);
  TANDEM_CHECK(w.device_rows() != nullptr, "{}: weights are codes or stored by input",
               w.state().spec.name);
  return w.device_rows();
}

void each_rows(const PackedWeights& w, int64_t first, int64_t n, std::span<std::byte> workspace,
               Stream stream, const VisitRows& visit) {
  if (const FrozenCodes* codes = codes_of(w)) return codes->each_rows(first, n, workspace, visit);
  if (is_frozen(w))
    return linear_cuda::each_rows(*w.state().cuda, first, n, workspace, stream, visit);
  const Tensor all(const_cast<void*>(trainable_rows(w)), w.dtype(), {w.out(), w.in()}, w.device());
  visit(first, all.slice(first, n), workspace);
}

void read_part(std::span<float> out, const PackedWeights& w, WeightPart part,
               std::span<const int32_t> index, Stream stream) {
  check_values(out.size(), w, part, index.size());
  if (on_gpu(w) && is_frozen(w))
    return convert(out.data(), DType::f32, held_of(w, part), DType::bf16, std::ssize(out), stream);
  if (on_gpu(w))
    return launch(TANDEM_KERNEL(read_weight_part), part_params(w, part, out.data(), index), stream);
  if (const FrozenCodes* codes = codes_of(w)) return codes->read(out, part, index);
  const size_t bytes = w.row_bytes();
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
  if (on_gpu(w) && is_frozen(w))
    return convert(held_of(w, part), DType::bf16, values.data(), DType::f32, std::ssize(values),
                   stream);
  if (on_gpu(w))
    return launch(TANDEM_KERNEL(write_weight_part), part_params(w, part, values.data(), index),
                  stream);
  if (FrozenCodes* codes = codes_of(w)) return codes->write(part, values);
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
  if (!on_gpu(w))
    return linear_cpu::pack_rows(*w.state().cpu, [](int64_t, int64_t) { return true; });
  if (w.bias() != nullptr)
    convert(linear_cuda::rounded_bias(*w.state().cuda), DType::bf16, w.bias(), DType::f32, w.out(),
            stream);
}

}  // namespace tandem::ops
