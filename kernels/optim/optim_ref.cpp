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
  const AdamWStep& by = p.by;
  const int64_t end = std::min(p.n, int64_t{blocks.end} * kOptimBlock);
  for (int64_t i = int64_t{blocks.begin} * kOptimBlock; i < end; ++i) {
    const double g = double{p.gradient[i]} * by.gradient_scale;
    const double m = double{by.beta1} * p.first[i] + (1 - double{by.beta1}) * g;
    const double v = double{by.beta2} * p.second[i] + (1 - double{by.beta2}) * g * g;
    p.first[i] = static_cast<float>(m);
    p.second[i] = static_cast<float>(v);
    const double update = m * by.unbias1 / (std::sqrt(v * by.unbias2) + by.epsilon);
    const double w = p.weights[i];
    const double from_base = w - (p.base == nullptr ? 0.0 : double{p.base[i]});
    p.weights[i] =
        static_cast<float>(w - by.learning_rate * (update + by.weight_decay * from_base));
  }
}

}  // namespace tandem
