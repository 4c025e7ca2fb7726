#include "kernels/ffn/gate_mul.h"
#include "kernels/ffn/gate_ref.h"
#include "kernels/reference.h"

namespace tandem {

void gate_mul_ref(const GateMulParams& p, Range rows) {
  const int64_t width = p.ffn_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const auto half = [&](int64_t first) {
        return element(p.gate_up, p.act, r * 2 * width + first + i);
      };
      put(p.out, p.act, r * width + i, gate_value(p.gate, half(0)) * half(width));
    }
}

}  // namespace tandem
