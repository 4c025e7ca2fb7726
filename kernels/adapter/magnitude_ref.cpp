#include "kernels/adapter/magnitude.h"
#include "kernels/reference.h"

namespace tandem {
namespace {

template <class T>
void scale(const MagnitudeScaleParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t c = 0; c < p.n; ++c) {
      const int64_t i = r * p.width + p.first + c;
      const double bias = p.bias == nullptr ? 0.0 : double{p.bias[c]};
      const double y = p.scale[c] * (element(p.in, p.in_type, i) - bias) + bias;
      static_cast<T*>(p.out)[i] = from_double<T>(y);
      if (p.sum != nullptr) p.sum[i] = static_cast<float>(p.sum[i] + y);
    }
}

}  // namespace

void magnitude_scale_ref(const MagnitudeScaleParams& p, Range rows) {
  p.act == DType::bf16 ? scale<bf16>(p, rows) : scale<float>(p, rows);
}

void magnitude_gradient_ref(const MagnitudeGradientParams& p, Range columns) {
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    if (p.magnitude[c] == 0) continue;
    const double bias = p.bias == nullptr ? 0.0 : double{p.bias[c]};
    double sum = 0;
    for (int64_t r = 0; r < p.n_rows; ++r) {
      const int64_t i = r * p.width + p.first + c;
      sum += element(p.dy, p.act, i) * (element(p.y, p.act, i) - bias);
    }
    p.sums[c] = static_cast<float>(p.sums[c] + sum / p.magnitude[c]);
  }
}

}  // namespace tandem
