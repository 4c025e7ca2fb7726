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

template <class T>
void normalize(const RmsNormParams& p, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = p.x + static_cast<int64_t>(p.rows == nullptr ? r : p.rows[r]) * p.dim;
    T* out = static_cast<T*>(p.out) + static_cast<int64_t>(r) * p.dim;
    const Vec inverse = set1(1.0f / __builtin_sqrtf(mean_square(x, p.dim) + p.eps));
    int i = 0;
    for (; i + Vec::kLanes <= p.dim; i += Vec::kLanes)
      store(out + i, load(x + i) * inverse * load(p.weight + i));
    if (const int n = p.dim - i; n > 0)
      store_n(out + i, load_n(x + i, n) * inverse * load_n(p.weight + i, n), n);
  }
}

}  // namespace

void TANDEM_ISA_FN(rms_norm)(const RmsNormParams& p, Range rows) {
  if (p.act == DType::bf16)
    normalize<bf16>(p, rows);
  else
    normalize<float>(p, rows);
}

}  // namespace tandem
