#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/selection/sample_tail.h"
#include "kernels/selection/tail_numbers.h"

namespace tandem {
namespace {

uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace

void draw_exponentials_ref(const DrawExponentialsParams& p, Range ids) {
  for (int i = ids.begin; i < ids.end; ++i) {
    const uint32_t x = mix(static_cast<uint32_t>(i) * 0x9e3779b1u + p.key);
    p.draws[i] = static_cast<float>(-std::log(1.0 - (x >> 9) * 0x1p-23));
  }
}

int sample_tail_ref(const SampleTailParams& p) {
  constexpr int kSample = 1024;
  const int step = (p.n + kSample - 1) / kSample;
  std::vector<double> weights;
  int n_sampled = 0;
  for (int i = 0; i < p.n && n_sampled < kSample; i += step, ++n_sampled)
    if (p.scores[i] <= p.threshold) weights.push_back(double{p.gain} * p.scores[i]);
  if (weights.empty()) return 0;
  const double each = double(p.n) / n_sampled;
  double log_scale = *std::max_element(weights.begin(), weights.end());
  for (int round = 0; round < 8; ++round) {
    double sum = 0, capped = 0;
    for (const double w : weights)
      (w > log_scale ? capped : sum) += w > log_scale ? 1 : std::exp(w - log_scale);
    const double rest = p.wanted - each * capped;
    if (rest <= 0 || sum <= 0) break;
    const double change = std::log(each * sum / rest);
    log_scale += change;
    if (std::abs(change) < 0.01) break;
  }
  const auto take = [&] {
    int n = 0;
    for (int i = 0; i < p.n; ++i) {
      const double minus_log_u = log_scale - double{p.gain} * p.scores[i];
      if (p.scores[i] > p.threshold || p.draws[i] < minus_log_u) continue;
      p.ids[n] = p.first_id + i;
      p.bias[n++] = static_cast<float>(std::max(0.0, minus_log_u));
    }
    return n;
  };
  int n = take();
  for (; n > most_sampled(p.wanted); n = take()) log_scale += kScaleRise;
  return n;
}

}  // namespace tandem
