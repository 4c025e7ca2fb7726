#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/linear/quantized_linear.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

/// Weights of a row of codes.
std::vector<double> weights_of(const CodedMatrix& m, const uint8_t*& row) {
  const int group = m.group == 0 ? m.in : m.group;
  const auto half = [&] {
    uint16_t bits;
    std::memcpy(&bits, row, sizeof bits);
    row += sizeof bits;
    return double{m.scale == ScaleType::f16 ? to_float(f16{bits}) : to_float(bf16{bits})};
  };
  std::vector<double> weights;
  for (int first = 0; first < m.in; first += group) {
    std::vector<double> codes;
    for (int i = 0; i < group; ++i)
      codes.push_back(m.code == Code::i8 ? static_cast<int8_t>(row[i])
                                         : row[i / 2] >> (i % 2 * 4) & 15);
    row += m.code == Code::i8 ? group : (group + 1) / 2;
    const double scale = half();
    double zero = m.code == Code::i4 ? 8 : 0, minimum = 0;
    if (m.zero == Zero::integer) zero = static_cast<int8_t>(*row++);
    if (m.zero == Zero::minimum) zero = 0, minimum = half();
    for (int i = 0; i < std::min(group, m.in - first); ++i)
      weights.push_back(scale * (codes[static_cast<size_t>(i)] - zero) + minimum);
  }
  return weights;
}

/// A row of x as the integers of 8 bits hold it.
std::vector<double> rounded(const QuantizedLinearParams& p, int64_t row) {
  const int in = p.matrix.in;
  std::vector<double> x;
  for (int first = 0; first < in; first += kInputGroup) {
    const int n = std::min(kInputGroup, in - first);
    float most = 0;
    const auto value = [&](int i) {
      return static_cast<float>(element(p.x, p.x_type, row * in + first + i));
    };
    for (int i = 0; i < n; ++i) most = std::max(most, std::abs(value(i)));
    const float inverse = most > kLeastInput ? 127.0f / most : 0.0f;
    for (int i = 0; i < n; ++i)
      x.push_back(std::nearbyint(value(i) * inverse) * double{most / 127.0f});
  }
  return x;
}

}  // namespace

void quantized_linear_ref(const QuantizedLinearParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const std::vector<double> x = rounded(p, r);
    const auto* codes = static_cast<const uint8_t*>(p.w);
    for (int o = 0; o < p.out; ++o) {
      const std::vector<double> w = weights_of(p.matrix, codes);
      const int64_t at = r * p.y_stride + o;
      double sum = p.bias == nullptr ? 0 : p.bias[o];
      if (p.accumulate) sum += element(p.y, p.y_type, at);
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * w[i];
      put(p.y, p.y_type, at, sum);
    }
  }
}

}  // namespace tandem
