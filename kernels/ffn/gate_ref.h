#pragma once
// Gates one by one, as plain references compute them.
#include <cmath>

#include "kernels/ffn/gate.h"

namespace tandem {

template <class F>
F gate_value(Gate gate, F g) {
  if (gate == Gate::gelu) return g * std::erfc(-g / std::sqrt(F(2))) / 2;
  if (gate == Gate::relu) return g > 0 ? g : 0;
  return g / (1 + std::exp(-gate_exponent(gate, g)));
}

inline double gate_slope(Gate gate, double g) {
  if (gate == Gate::gelu)
    return std::erfc(-g / std::sqrt(2.0)) / 2 + g * std::exp(-g * g / 2) * 0.3989422804014327;
  if (gate == Gate::relu) return g > 0 ? 1 : 0;
  const double s = 1 / (1 + std::exp(-gate_exponent(gate, g)));
  return s * (1 + gate_growth(gate, g) * (1 - s));
}

}  // namespace tandem
