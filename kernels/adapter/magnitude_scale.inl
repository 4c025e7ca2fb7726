#include "kernels/adapter/magnitude.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

template <class In, class Out>
void scale(const MagnitudeScaleParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t at = r * p.width + p.first;
    const In* in = static_cast<const In*>(p.in) + at;
    Out* out = static_cast<Out*>(p.out) + at;
    for (int c = 0; c < p.n; c += Vec::kLanes) {
      const int n = p.n - c < Vec::kLanes ? p.n - c : Vec::kLanes;
      const Vec s = load_n(p.scale + c, n);
      const Vec rest = p.bias == nullptr ? zero() : (set1(1.0f) - s) * load_n(p.bias + c, n);
      const Vec y = fma(s, load_n(in + c, n), rest);
      store_n(out + c, y, n);
      if (p.sum != nullptr) store_n(p.sum + at + c, load_n(p.sum + at + c, n) + y, n);
    }
  }
}

}  // namespace

void TANDEM_ISA_FN(magnitude_scale)(const MagnitudeScaleParams& p, Range rows) {
  if (p.act == DType::f32) return scale<float, float>(p, rows);
  p.in_type == DType::bf16 ? scale<bf16, bf16>(p, rows) : scale<float, bf16>(p, rows);
}

}  // namespace tandem
