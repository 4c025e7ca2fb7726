#pragma once
// Gates one by one, as plain references compute them.
#include <cmath>

#include "kernels/ffn/gate.h"

namespace tandem {

template <class F>
F gate_value(Gate gate, F g) {
  return g / (1 + std::exp(-gate_exponent(gate, g)));
}

inline double gate_slope(Gate gate, double g) {
  const double s = 1 / (1 + std::exp(-gate_exponent(gate, g)));
  return s * (1 + gate_growth(gate, g) * (1 - s));
}

}  // namespace tandem
