#include "kernels/ffn/gate_mul_backward.h"
#include "kernels/ffn/gate_ref.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

template <class T>
void rows_backward(const GateMulBackwardParams& p, Range rows) {
  const int64_t width = p.ffn_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    T* gate = static_cast<T*>(p.gate_up) + r * 2 * width;
    T* up = gate + width;
    for (int64_t c = 0; p.a_columns != nullptr && c < p.n_columns; ++c) {
      const int64_t i = p.columns == nullptr ? c : p.columns[c];
      static_cast<T*>(p.a_columns)[r * p.n_columns + c] =
          from_double<T>(gate_value(p.gate, double{to_float(gate[i])}) * to_float(up[i]));
    }
    if (p.da == nullptr) continue;
    for (int64_t i = 0; i < width; ++i) {
      const double g = to_float(gate[i]), u = to_float(up[i]);
      const double da = to_float(static_cast<const T*>(p.da)[r * width + i]);
      gate[i] = from_double<T>(da * u * gate_slope(p.gate, g));
      up[i] = from_double<T>(da * gate_value(p.gate, g));
    }
  }
}

}  // namespace

void gate_mul_backward_ref(const GateMulBackwardParams& p, Range rows) {
  p.act == DType::bf16 ? rows_backward<bf16>(p, rows) : rows_backward<float>(p, rows);
}

}  // namespace tandem
