#include "kernels/ffn/silu.h"
#include "kernels/ffn/silu_mul_backward.h"

namespace tandem {
namespace {

using namespace simd;

/// The listed columns of a, a vector of them at a time.
template <class T>
void gather_columns(const SiluMulBackwardParams& p, const T* gate, const T* up, T* out) {
  for (int c = 0; c < p.n_columns; c += Vec::kLanes) {
    const int n = p.n_columns - c < Vec::kLanes ? p.n_columns - c : Vec::kLanes;
    if (p.columns == nullptr) {
      store_n(out + c, silu(load_n(gate + c, n)) * load_n(up + c, n), n);
      continue;
    }
    T gates[Vec::kLanes] = {}, ups[Vec::kLanes] = {};
    for (int i = 0; i < n; ++i) {
      gates[i] = gate[p.columns[c + i]];
      ups[i] = up[p.columns[c + i]];
    }
    store_n(out + c, silu(load(gates)) * load(ups), n);
  }
}

template <class T>
void row_backward(T* gate, T* up, const T* da, int width) {
  for (int i = 0; i < width; i += Vec::kLanes) {
    const int n = width - i < Vec::kLanes ? width - i : Vec::kLanes;
    const Vec g = load_n(gate + i, n), d = load_n(da + i, n);
    const Vec s = set1(1.0f) / (set1(1.0f) + exp(zero() - g));
    // 1 - s as exp(-g) s would be inf * 0 for a saturated gate.
    const Vec slope = s * fma(g, set1(1.0f) - s, set1(1.0f));
    store_n(gate + i, d * load_n(up + i, n) * slope, n);
    store_n(up + i, d * (g * s), n);
  }
}

template <class T>
void rows_backward(const SiluMulBackwardParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    T* gate = static_cast<T*>(p.gate_up) + r * 2 * p.ffn_dim;
    T* up = gate + p.ffn_dim;
    if (p.a_columns != nullptr)
      gather_columns(p, gate, up, static_cast<T*>(p.a_columns) + r * p.n_columns);
    if (p.da != nullptr)
      row_backward(gate, up, static_cast<const T*>(p.da) + r * p.ffn_dim, p.ffn_dim);
  }
}

}  // namespace

void TANDEM_ISA_FN(silu_mul_backward)(const SiluMulBackwardParams& p, Range rows) {
  p.act == DType::bf16 ? rows_backward<bf16>(p, rows) : rows_backward<float>(p, rows);
}

}  // namespace tandem
