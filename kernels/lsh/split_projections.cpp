#include "kernels/lsh/split_projections.h"

#include <algorithm>
#include <cmath>

#include "base/convert.h"

namespace tandem {
namespace {

constexpr int kLanes = 32;

/// Two neighbours of a column, the first in the lower half: rounded, and what that leaves.
void put_pair(const float* at, uint32_t& upper, uint32_t& lower) {
  upper = lower = 0;
  for (int i = 0; i < 2; ++i) {
    const bf16 rounded = to_bf16(at[i]);
    upper |= uint32_t{rounded.bits} << (16 * i);
    lower |= uint32_t{to_bf16(at[i] - to_float(rounded)).bits} << (16 * i);
  }
}

}  // namespace

float split_projections(const SplitProjectionsParams& p) {
  const int dims = projection_dims(p.d), steps = dims / 16;
  double longest = 0;
  for (int j = 0; j < p.n_columns; ++j) {
    float* const column = p.columns + int64_t{j} * dims;
    double square = 0;
    for (int c = 0; c < dims; ++c) {
      column[c] = c < p.d ? p.w[c * p.w_stride + j] : 0.0f;
      square += double{column[c]} * column[c];
    }
    longest = std::max(longest, square);
    // Lane 4 g + t has column g of its tile, and pairs from coordinates 2 t and 2 t + 8 on.
    for (int step = 0; step < steps; ++step)
      for (int t = 0; t < 4; ++t) {
        ProjectionPart& part = p.parts[(int64_t{j / 8} * steps + step) * kLanes + j % 8 * 4 + t];
        for (int half = 0; half < 2; ++half)
          put_pair(column + 16 * step + 2 * t + 8 * half, part.upper[half], part.lower[half]);
      }
  }
  return static_cast<float>(std::sqrt(longest) * (1 + 1e-6));
}

}  // namespace tandem
