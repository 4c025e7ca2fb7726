#include "kv/policies/tail_sample.h"

#include <algorithm>
#include <cmath>

namespace tandem::kv {
namespace {

/// 24 mixed bits of an id, as a fraction above 0 and at most 1.
float draw(uint64_t key, uint32_t id) {
  uint64_t z = key + uint64_t{id} * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>(((z ^ (z >> 31)) >> 40) + 1) * 0x1p-24f;
}

/// Goes through ascending ids and tells those that are excluded.
class Excluded {
 public:
  explicit Excluded(std::span<const int32_t> ids) : ids_(ids) {}
  bool has(int32_t id) {
    while (at_ < ids_.size() && ids_[at_] < id) ++at_;
    return at_ < ids_.size() && ids_[at_] == id;
  }

 private:
  std::span<const int32_t> ids_;
  size_t at_ = 0;
};

/// The scale of probabilities min(1, exp(gain * score - log_scale)) that sum to `wanted`.
float solve_log_scale(const TailKeys& keys, float gain, double wanted) {
  // Every 8th key: the sum over thousands of keys is known well enough from hundreds, and any scale
  // gives an unbiased sample, only of another size.
  const size_t step = keys.scores.size() > 4096 ? 8 : 1;
  float top = -INFINITY;
  for (size_t i = 0; i < keys.scores.size(); i += step)
    if (keys.scores[i] <= keys.threshold) top = std::max(top, gain * keys.scores[i]);
  if (top == -INFINITY) return INFINITY;
  float log_scale = top;
  for (int round = 0; round < 8; ++round) {
    double sum = 0, capped = 0;
    for (size_t i = 0; i < keys.scores.size(); i += step) {
      if (keys.scores[i] > keys.threshold) continue;
      const float w = gain * keys.scores[i] - log_scale;
      if (w >= 0) capped += static_cast<double>(step);
      else sum += static_cast<double>(step) * std::exp(w);
    }
    if (wanted <= capped || sum == 0) return log_scale;
    const double change = std::log(sum / (wanted - capped));
    log_scale += static_cast<float>(change);
    if (std::abs(change) < 0.01) break;
  }
  return log_scale;
}

}  // namespace

int sample_uniform(const TailKeys& keys, double stratum, uint64_t key, int32_t* ids, float* bias) {
  Excluded excluded(keys.excluded);
  const auto n = static_cast<double>(keys.scores.size());
  const auto weight = static_cast<float>(std::log(stratum));
  int count = 0;
  uint32_t i = 0;
  for (double begin = 0; begin < n; begin += stratum, ++i) {
    const double at = begin + (draw(key, i) - 0x1p-24) * stratum;
    if (at >= n) break;
    const int32_t id = keys.first_id + static_cast<int32_t>(at);
    if (excluded.has(id)) continue;
    ids[count] = id;
    bias[count++] = weight;
  }
  return count;
}

int sample_weighted(const TailKeys& keys, float gain, double wanted, uint64_t key, int32_t* ids,
                    float* bias) {
  const float log_scale = solve_log_scale(keys, gain, wanted);
  Excluded excluded(keys.excluded);
  int count = 0;
  for (size_t i = 0; i < keys.scores.size(); ++i) {
    if (keys.scores[i] > keys.threshold) continue;
    const float log_u = std::min(0.0f, gain * keys.scores[i] - log_scale);
    if (log_u < -24.0f) continue;  // below what a draw can tell from 0
    const int32_t id = keys.first_id + static_cast<int32_t>(i);
    if (std::exp(log_u) < draw(key, static_cast<uint32_t>(id)) || excluded.has(id)) continue;
    ids[count] = id;
    bias[count++] = -log_u;
  }
  return count;
}

}  // namespace tandem::kv
