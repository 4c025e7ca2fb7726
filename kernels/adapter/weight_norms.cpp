#include "kernels/adapter/weight_norms.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference.h"

namespace tandem {

void row_squares_cpu(const RowSquaresParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < p.in; ++c) {
      const double w = element(p.weights, p.act, r * p.in + c);
      sum += w * w;
    }
    p.squares[r] = static_cast<float>(sum);
  }
}

void weight_norms_cpu(const WeightNormsParams& p, Range rows) {
  const int64_t rank = p.rank;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    double change = 0;
    for (int64_t i = 0; i < rank; ++i) {
      double along = 0;  // of B_o A with A_i
      for (int64_t j = 0; j < rank; ++j)
        along += element(p.b, p.act, r * rank + j) * p.aa[i * rank + j];
      change += element(p.b, p.act, r * rank + i) *
                (2 * double{p.wa[r * rank + i]} + double{p.gamma} * along);
    }
    const auto norm = static_cast<float>(
        std::sqrt(std::max(0.0, double{p.squares[r]} + double{p.gamma} * change)));
    p.scale[r] = p.magnitude[r] / std::max(norm, kLeastWeightNorm);
  }
}

}  // namespace tandem
