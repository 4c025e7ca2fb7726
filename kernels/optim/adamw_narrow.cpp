#include "kernels/optim/adamw_narrow.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/convert.h"
#include "kernels/optim/adamw_element.h"

namespace tandem {
namespace {

bf16 narrow(const AdamWNarrowParams& p, float w, const PhiloxBlock& draw, int place) {
  if (!p.stochastic || !std::isfinite(w)) return to_bf16(w);
  return std::bit_cast<bf16>(round_by(std::bit_cast<uint32_t>(w), rounding_bits(draw, place)));
}

}  // namespace

void adamw_narrow_cpu(const AdamWNarrowParams& p, Range blocks) {
  const int64_t end = std::min(p.n, int64_t{blocks.end} * kOptimBlock);
  PhiloxBlock draw{};
  for (int64_t begin = int64_t{blocks.begin} * kOptimBlock, i = begin; i < end; ++i) {
    const RoundingPlace at = rounding_place(p.first_element + i);
    if (p.stochastic && (i == begin || at.place == 0))
      draw = rounding_draw(p.seed, p.step, at.group);
    const bool wide = p.weight_type == DType::f32;
    const float w =
        wide ? static_cast<float*>(p.weights)[i] : to_float(static_cast<bf16*>(p.weights)[i]);
    float m = to_float(p.first[i]), v = to_float(p.second[i]);
    const float base = p.base == nullptr ? 0.0f : p.base[i];
    const float next = adamw_element(p.by, p.gradient[i], w, base, m, v);
    p.first[i] = to_bf16(m);
    p.second[i] = to_bf16(v);
    if (wide)
      static_cast<float*>(p.weights)[i] = next;
    else
      static_cast<bf16*>(p.weights)[i] = narrow(p, next, draw, at.place);
  }
}

}  // namespace tandem
