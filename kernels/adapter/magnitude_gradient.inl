#include "kernels/adapter/magnitude.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

/// Columns whose sums stay in the first-level cache.
constexpr int kColumns = 512;

template <class T>
void add_columns(const MagnitudeGradientParams& p, int begin, int end) {
  float sums[kColumns] = {};
  for (int64_t r = 0; r < p.n_rows; ++r) {
    const int64_t at = r * p.width + p.first;
    const T *dy = static_cast<const T*>(p.dy) + at, *y = static_cast<const T*>(p.y) + at;
    for (int c = begin; c < end; c += Vec::kLanes) {
      const int n = end - c < Vec::kLanes ? end - c : Vec::kLanes;
      const Vec bias = p.bias == nullptr ? zero() : load_n(p.bias + c, n);
      float* sum = sums + (c - begin);
      store_n(sum, fma(load_n(dy + c, n), load_n(y + c, n) - bias, load_n(sum, n)), n);
    }
  }
  for (int c = begin; c < end; ++c)
    if (p.magnitude[c] != 0) p.sums[c] += sums[c - begin] / p.magnitude[c];
}

}  // namespace

void TANDEM_ISA_FN(magnitude_gradient)(const MagnitudeGradientParams& p, Range columns) {
  for (int c = columns.begin; c < columns.end; c += kColumns) {
    const int end = columns.end - c < kColumns ? columns.end : c + kColumns;
    p.act == DType::bf16 ? add_columns<bf16>(p, c, end) : add_columns<float>(p, c, end);
  }
}

}  // namespace tandem
