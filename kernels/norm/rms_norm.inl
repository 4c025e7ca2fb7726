#include "kernels/norm/rms_norm.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Four chains hide the latency of the addition.
float mean_square(const float* x, int dim) {
  Vec sum[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * Vec::kLanes <= dim; i += 4 * Vec::kLanes)
    for (int chain = 0; chain < 4; ++chain) {
      const Vec v = load(x + i + chain * Vec::kLanes);
      sum[chain] = fma(v, v, sum[chain]);
    }
  for (; i < dim; i += Vec::kLanes) {
    const Vec v = load_n(x + i, dim - i < Vec::kLanes ? dim - i : Vec::kLanes);
    sum[0] = fma(v, v, sum[0]);
  }
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3])) / static_cast<float>(dim);
}

template <class T, bool kWeighted, bool kAdds>
void normalize(const RmsNormParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = p.x + static_cast<int64_t>(p.rows == nullptr ? r : p.rows[r]) * p.dim;
    T* out = static_cast<T*>(p.out) + static_cast<int64_t>(r) * p.dim;
    float inverse = p.scale;
    if constexpr (kWeighted) inverse /= __builtin_sqrtf(mean_square(x, p.dim) + p.eps);
    const Vec scale = set1(inverse);
    int i = 0;
    for (; i + Vec::kLanes <= p.dim; i += Vec::kLanes) {
      Vec y = load(x + i) * scale;
      if constexpr (kWeighted) y = y * load(p.weight + i);
      if constexpr (kAdds) y = y + load(out + i);
      store(out + i, y);
    }
    if (const int n = p.dim - i; n > 0) {
      Vec y = load_n(x + i, n) * scale;
      if constexpr (kWeighted) y = y * load_n(p.weight + i, n);
      if constexpr (kAdds) y = y + load_n(out + i, n);
      store_n(out + i, y, n);
    }
  }
}

template <class T, bool kAdds>
void normalize(const RmsNormParams& p, Range rows) {
  p.weight == nullptr ? normalize<T, false, kAdds>(p, rows) : normalize<T, true, kAdds>(p, rows);
}

}  // namespace

void TANDEM_ISA_FN(rms_norm)(const RmsNormParams& p, Range rows) {
  if (p.act == DType::bf16)
    normalize<bf16, false>(p, rows);
  else
    p.adds ? normalize<float, true>(p, rows) : normalize<float, false>(p, rows);
}

}  // namespace tandem
