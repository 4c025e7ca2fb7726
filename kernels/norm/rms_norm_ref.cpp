#include <cmath>

#include "base/convert.h"
#include "kernels/norm/rms_norm.h"

namespace tandem {

void rms_norm_ref(const RmsNormParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = p.x + static_cast<int64_t>(p.rows == nullptr ? r : p.rows[r]) * p.dim;
    double sum = 0;
    for (int i = 0; i < p.dim; ++i) sum += double{x[i]} * x[i];
    const bool weighted = p.weight != nullptr;
    const double inverse = p.scale / (weighted ? std::sqrt(sum / p.dim + p.eps) : 1.0);
    for (int i = 0; i < p.dim; ++i) {
      const int64_t at = static_cast<int64_t>(r) * p.dim + i;
      const double before = p.adds ? double{static_cast<float*>(p.out)[at]} : 0.0;
      const auto y =
          static_cast<float>(x[i] * inverse * (weighted ? double{p.weight[i]} : 1.0) + before);
      if (p.act == DType::bf16)
        static_cast<bf16*>(p.out)[at] = to_bf16(y);
      else
        static_cast<float*>(p.out)[at] = y;
    }
  }
}

}  // namespace tandem
