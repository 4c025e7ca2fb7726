#include "kernels/optim/optim.h"
#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int64_t kChain = 1024;

int64_t cut(int64_t i, int64_t n) { return i < n ? i : n; }

int lanes(int64_t i, int64_t end) {
  return end - i < Vec::kLanes ? static_cast<int>(end - i) : Vec::kLanes;
}

float squares(const float* x, int64_t n) {
  Vec sum = zero();
  for (int64_t i = 0; i < n; i += Vec::kLanes) {
    const Vec a = load_n(x + i, lanes(i, n));
    sum = fma(a, a, sum);
  }
  return reduce_add(sum);
}

}  // namespace

void TANDEM_ISA_FN(square_sum)(const SquareSumParams& p, Range blocks) {
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const int64_t end = cut((b + 1) * kOptimBlock, p.n);
    double sum = 0;
    for (int64_t i = b * kOptimBlock; i < end; i += kChain)
      sum += static_cast<double>(squares(p.x + i, cut(end - i, kChain)));
    p.sums[b] = sum;
  }
}

void TANDEM_ISA_FN(adamw)(const AdamWParams& p, Range blocks) {
  const AdamWStep& by = p.by;
  const Vec beta1 = set1(by.beta1), rest1 = set1(1.0f - by.beta1);
  const Vec beta2 = set1(by.beta2), rest2 = set1(1.0f - by.beta2);
  const Vec unbias1 = set1(by.unbias1), unbias2 = set1(by.unbias2);
  const Vec scale = set1(by.gradient_scale), rate = set1(by.learning_rate);
  const Vec epsilon = set1(by.epsilon), decay = set1(by.weight_decay);
  const int64_t end = cut(static_cast<int64_t>(blocks.end) * kOptimBlock, p.n);
  for (int64_t i = static_cast<int64_t>(blocks.begin) * kOptimBlock; i < end; i += Vec::kLanes) {
    const int n = lanes(i, end);
    const Vec g = load_n(p.gradient + i, n) * scale;
    const Vec m = fma(beta1, load_n(p.first + i, n), rest1 * g);
    const Vec v = fma(beta2, load_n(p.second + i, n), rest2 * (g * g));
    const Vec w = load_n(p.weights + i, n);
    const Vec update = m * unbias1 / (sqrt(v * unbias2) + epsilon);
    store_n(p.first + i, m, n);
    store_n(p.second + i, v, n);
    const Vec from_base = p.base == nullptr ? w : w - load_n(p.base + i, n);
    store_n(p.weights + i, fnma(rate, fma(decay, from_base, update), w), n);
  }
}

}  // namespace tandem
