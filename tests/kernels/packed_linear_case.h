#pragma once
// One product for the tests of packed_linear: its matrix in rows and in panels, its inputs, and
// runs of any of its rows.
#include <cstring>

#include "kernels/linear/packed_linear_cpu.h"
#include "kernels/variants.h"

namespace tandem::test {

struct LinearShape {
  int out, in;
};

struct LinearCase {
  LinearShape shape;
  DType type;
  bool bias, accumulate;
  DType y_type = DType::f32;
  int rows = 64;
  ActBuffer w, x, start;  // [out, in], [rows, in], [rows, out]: y before
  Buffer<float> b;        // [out]

  /// `value` gives the numbers; those of w and x are rounded to the type.
  template <class Value>
  LinearCase(LinearShape s, DType t, int n_rows, bool with_bias, bool add, Value value)
      : shape(s),
        type(t),
        bias(with_bias),
        accumulate(add),
        rows(n_rows),
        w(t, static_cast<size_t>(s.out) * static_cast<size_t>(s.in)),
        x(t, static_cast<size_t>(n_rows) * static_cast<size_t>(s.in), 1),
        start(DType::f32, static_cast<size_t>(n_rows) * static_cast<size_t>(s.out)),
        b(static_cast<size_t>(s.out), 1) {
    for (ActBuffer* numbers : {&w, &x, &start})
      for (size_t i = 0; i < numbers->size(); ++i) numbers->set(i, value());
    for (size_t i = 0; i < b.size(); ++i) b[i] = value();
  }

  PackedLinearParams params(void* y, const void* inputs, const void* weights, int n_rows) {
    return {.y = y,
            .x = inputs,
            .w = weights,
            .bias = bias ? b.data() : nullptr,
            .rows = n_rows,
            .out = shape.out,
            .in = shape.in,
            .y_stride = shape.out,
            .type = type,
            .y_type = y_type,
            .accumulate = accumulate};
  }

  std::vector<char> pack(const PackedLinearKernel& kernel) {
    std::vector<char> panels(packed_weights_bytes(kernel, shape.out, shape.in, type), 0x5a);
    const int n = (shape.out + kernel.panel_outputs - 1) / kernel.panel_outputs;
    kernel.pack_weights({panels.data(), w.data(), shape.out, shape.in, type}, {0, n});
    return panels;
  }

  /// y of the rows `picked`, in that order; `panels` is the matrix as pack makes it.
  ActBuffer run(const PackedLinearKernel& kernel, const std::vector<char>& panels,
                const std::vector<int>& picked, int threads) {
    const auto n = static_cast<int>(picked.size());
    const auto in = static_cast<size_t>(shape.in), out = static_cast<size_t>(shape.out);
    ActBuffer inputs(type, picked.size() * in, 1), y(y_type, picked.size() * out, 1);
    const size_t row_bytes = in * (type == DType::bf16 ? sizeof(bf16) : sizeof(float));
    for (size_t r = 0; r < picked.size(); ++r) {
      const auto from = static_cast<size_t>(picked[r]);
      std::memcpy(static_cast<char*>(inputs.data()) + r * row_bytes,
                  static_cast<const char*>(x.data()) + from * row_bytes, row_bytes);
      for (size_t o = 0; o < out; ++o)
        y.set(r * out + o, accumulate ? start.f32[from * out + o] : NAN);
    }
    std::vector<char> workspace(packed_linear_workspace_bytes(kernel, n, shape.in, type, threads));
    packed_linear_with(kernel, params(y.data(), inputs.data(), panels.data(), n), workspace.data(),
                       threads);
    return y;
  }

  ActBuffer reference() {
    ActBuffer y(y_type, start.size());
    for (size_t i = 0; i < start.size(); ++i) y.set(i, start.get(i));
    packed_linear_ref(params(y.data(), x.data(), w.data(), rows), {0, rows});
    return y;
  }

  /// Whether rows i of y and k of z are the same bits, both of y_type.
  bool same(ActBuffer& y, int i, ActBuffer& z, int k) const {
    const size_t bytes =
        static_cast<size_t>(shape.out) * (y_type == DType::bf16 ? sizeof(bf16) : sizeof(float));
    return std::memcmp(static_cast<const char*>(y.data()) + static_cast<size_t>(i) * bytes,
                       static_cast<const char*>(z.data()) + static_cast<size_t>(k) * bytes,
                       bytes) == 0;
  }
};

}  // namespace tandem::test
