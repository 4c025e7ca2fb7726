#include "kernels/adapter/weight_norms.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference.h"

namespace tandem {
namespace {

float norm_of(double squares) {
  return std::max(static_cast<float>(std::sqrt(std::max(0.0, squares))), kLeastWeightNorm);
}

}  // namespace

void row_squares_cpu(const RowSquaresParams& p, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < p.in; ++c) {
      const double w = element(p.weights, p.act, r * p.in + c);
      sum += w * w;
    }
    const auto squares = static_cast<float>(sum);
    p.squares[r] = p.root ? norm_of(double{squares}) : squares;
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
    p.scale[r] = p.magnitude[r] / norm_of(double{p.squares[r]} + double{p.gamma} * change);
  }
}

}  // namespace tandem
