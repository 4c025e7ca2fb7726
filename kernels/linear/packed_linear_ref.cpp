#include "kernels/linear/packed_linear.h"
#include "kernels/reference.h"

namespace tandem {

void packed_linear_ref(const PackedLinearParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t o = 0; o < p.out; ++o) {
      const int64_t at = r * p.y_stride + o;
      double sum = p.bias == nullptr ? 0 : p.bias[o];
      if (p.accumulate) sum += static_cast<const float*>(p.y)[at];
      for (int64_t i = 0; i < p.in; ++i)
        sum += element(p.x, p.type, r * p.in + i) * element(p.w, p.type, o * p.in + i);
      if (p.y_type == DType::bf16)
        static_cast<bf16*>(p.y)[at] = to_bf16(static_cast<float>(sum));
      else
        static_cast<float*>(p.y)[at] = static_cast<float>(sum);
    }
}

}  // namespace tandem
