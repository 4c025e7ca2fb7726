#include <algorithm>
#include <cmath>
#include <vector>

#include "base/weight_format.h"
#include "kernels/linear/quantized_linear_cpu.h"
#include "kernels/quant/dequantize.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

/// A row of x as the integers of 8 bits hold it, for fp8 codes as it is.
std::vector<double> rounded(const QuantizedLinearParams& p, int64_t row) {
  const int in = p.matrix.in;
  std::vector<double> x;
  if (p.matrix.code == Code::fp8) {
    for (int i = 0; i < in; ++i) x.push_back(element(p.x, p.x_type, row * in + i));
    return x;
  }
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
  const CodedMatrix& m = p.matrix;
  std::vector<float> w(static_cast<size_t>(p.out) * static_cast<size_t>(m.in));
  dequantize_ref({.out = w.data(),
                  .in = static_cast<const uint8_t*>(p.w),
                  .row_bytes = static_cast<int64_t>(row_bytes(format_of(m), m.in)),
                  .width = m.in,
                  .group = m.group == 0 ? m.in : m.group,
                  .code = m.code,
                  .scale = m.scale,
                  .zero = m.zero,
                  .to = DType::f32},
                 {0, p.out});
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const std::vector<double> x = rounded(p, r);
    for (int o = 0; o < p.out; ++o) {
      const int64_t at = r * p.y_stride + o;
      double sum = p.bias == nullptr ? 0 : p.bias[o];
      if (p.accumulate) sum += element(p.y, p.y_type, at);
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * w[static_cast<size_t>(o) * x.size() + i];
      put(p.y, p.y_type, at, sum);
    }
  }
}

}  // namespace tandem
