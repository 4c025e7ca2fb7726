#include <cmath>

#include "base/convert.h"
#include "kernels/ffn/silu_mul.h"

namespace tandem {

void silu_mul_ref(const SiluMulParams& p, Range rows) {
  const auto read = [&](int64_t i) {
    return p.act == DType::bf16 ? to_float(static_cast<const bf16*>(p.gate_up)[i])
                                : static_cast<const float*>(p.gate_up)[i];
  };
  const int64_t width = p.ffn_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const double gate = read(r * 2 * width + i), up = read(r * 2 * width + width + i);
      const auto y = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
      if (p.act == DType::bf16)
        static_cast<bf16*>(p.out)[r * width + i] = to_bf16(y);
      else
        static_cast<float*>(p.out)[r * width + i] = y;
    }
}

}  // namespace tandem
