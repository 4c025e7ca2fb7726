#include "kernels/ffn/gate_mul_backward.h"
#include "kernels/ffn/gate_vec.h"

namespace tandem {
namespace {

using namespace simd;

/// The listed columns of a, a vector of them at a time.
template <Gate kGate, class T>
void gather_columns(const GateMulBackwardParams& p, const T* gate, const T* up, T* out) {
  for (int c = 0; c < p.n_columns; c += Vec::kLanes) {
    const int n = p.n_columns - c < Vec::kLanes ? p.n_columns - c : Vec::kLanes;
    if (p.columns == nullptr) {
      store_n(out + c, gate_value(kGate, load_n(gate + c, n)) * load_n(up + c, n), n);
      continue;
    }
    T gates[Vec::kLanes] = {}, ups[Vec::kLanes] = {};
    for (int i = 0; i < n; ++i) {
      gates[i] = gate[p.columns[c + i]];
      ups[i] = up[p.columns[c + i]];
    }
    store_n(out + c, gate_value(kGate, load(gates)) * load(ups), n);
  }
}

template <Gate kGate, class T>
void row_backward(T* gate, T* up, const T* da, int width) {
  for (int i = 0; i < width; i += Vec::kLanes) {
    const int n = width - i < Vec::kLanes ? width - i : Vec::kLanes;
    const Vec g = load_n(gate + i, n), d = load_n(da + i, n);
    const Vec s = set1(1.0f) / gate_divisor(kGate, g);
    store_n(gate + i, d * load_n(up + i, n) * gate_slope(kGate, g, s), n);
    store_n(up + i, d * (g * s), n);
  }
}

template <Gate kGate, class T>
void rows_backward(const GateMulBackwardParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    T* gate = static_cast<T*>(p.gate_up) + r * 2 * p.ffn_dim;
    T* up = gate + p.ffn_dim;
    if (p.a_columns != nullptr)
      gather_columns<kGate>(p, gate, up, static_cast<T*>(p.a_columns) + r * p.n_columns);
    if (p.da != nullptr)
      row_backward<kGate>(gate, up, static_cast<const T*>(p.da) + r * p.ffn_dim, p.ffn_dim);
  }
}

template <Gate kGate>
void rows_backward(const GateMulBackwardParams& p, Range rows) {
  p.act == DType::bf16 ? rows_backward<kGate, bf16>(p, rows) : rows_backward<kGate, float>(p, rows);
}

}  // namespace

void TANDEM_ISA_FN(gate_mul_backward)(const GateMulBackwardParams& p, Range rows) {
  with_gate(p.gate, [&](auto gate) { rows_backward<decltype(gate)::value>(p, rows); });
}

}  // namespace tandem
