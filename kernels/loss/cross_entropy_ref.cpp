#include "kernels/loss/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "base/convert.h"

namespace tandem {

void cross_entropy_ref(const CrossEntropyParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* z = p.logits + r * p.vocab;
    const int32_t target = p.targets[r];
    const double top = *std::max_element(z, z + p.vocab);
    double sum = 0;
    for (int i = 0; i < p.vocab; ++i) sum += std::exp(z[i] - top);
    p.loss[r] = target < 0 ? 0.0f : static_cast<float>(top + std::log(sum) - z[target]);
    if (p.dlogits == nullptr) continue;
    for (int i = 0; i < p.vocab; ++i) {
      const double share = std::exp(z[i] - top) / sum - (i == target ? 1 : 0);
      const auto dz = target < 0 ? 0.0f : static_cast<float>(share * p.scale);
      if (p.act == DType::bf16)
        static_cast<bf16*>(p.dlogits)[r * p.vocab + i] = to_bf16(dz);
      else
        static_cast<float*>(p.dlogits)[r * p.vocab + i] = dz;
    }
  }
}

}  // namespace tandem
