#include <algorithm>
#include <cmath>

#include "kernels/optim/optim.h"

namespace tandem {

void square_sum_ref(const SquareSumParams& p, Range blocks) {
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    double sum = 0;
    for (int64_t i = b * kOptimBlock; i < std::min(p.n, (b + 1) * kOptimBlock); ++i)
      sum += double{p.x[i]} * p.x[i];
    p.sums[b] = sum;
  }
}

void adamw_ref(const AdamWParams& p, Range blocks) {
  const int64_t end = std::min(p.n, int64_t{blocks.end} * kOptimBlock);
  for (int64_t i = int64_t{blocks.begin} * kOptimBlock; i < end; ++i) {
    const double g = double{p.gradient[i]} * p.gradient_scale;
    const double m = double{p.beta1} * p.first[i] + (1 - double{p.beta1}) * g;
    const double v = double{p.beta2} * p.second[i] + (1 - double{p.beta2}) * g * g;
    p.first[i] = static_cast<float>(m);
    p.second[i] = static_cast<float>(v);
    const double update = m / p.correction1 / (std::sqrt(v / p.correction2) + p.epsilon);
    const double w = p.weights[i];
    const double from_base = w - (p.base == nullptr ? 0.0 : double{p.base[i]});
    p.weights[i] = static_cast<float>(w - p.learning_rate * (update + p.weight_decay * from_base));
  }
}

}  // namespace tandem
