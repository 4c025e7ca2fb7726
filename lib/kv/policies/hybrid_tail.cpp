#include "kv/policies/hybrid_tail.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/selection/tail_numbers.h"
#include "kv/policies/centered_keys.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

/// Sampled keys and how their weights differ from the estimates.
struct Sample {
  int n = 0;
  double correction = 0;  // of the mass: sum of (w - h) / probability
  double deviation = 0;   // of the correction
};

int runs_of(const HybridTailParams& p) {
  return (static_cast<int>(p.scores.size()) + kMeanKeys - 1) / kMeanKeys;
}

int draw(const HybridTailParams& p, double wanted) {
  return ops::sample_tail({.ids = p.ids,
                           .bias = p.bias,
                           .scores = p.scores.data(),
                           .draws = p.draws,
                           .n = static_cast<int>(p.scores.size()),
                           .first_id = p.first_id,
                           .threshold = std::numeric_limits<float>::infinity(),
                           .gain = 1,
                           .wanted = static_cast<float>(wanted)});
}

/// Sum of estimated weights, relative to exp(threshold), none above exp(most).
double mass_below(const HybridTailParams& p, float most) {
  ops::tail_masses({.masses = p.masses,
                    .scores = p.scores.data(),
                    .n = static_cast<int>(p.scores.size()),
                    .most = most,
                    .origin = p.threshold});
  return std::accumulate(p.masses, p.masses + runs_of(p), 0.0);
}

/// Reads the keys of the sample that was drawn last. How far their weights are from the estimates,
/// w / h - 1, is taken to be much the same for those that were not drawn: they would not show in a
/// deviation from the sample's terms alone.
Sample judge(const HybridTailParams& p, int n, KeyList& list) {
  const auto d = static_cast<size_t>(p.query.keys.head_dim());
  list.index_bytes +=
      static_cast<double>(n) * static_cast<double>(d * dtype_bytes(p.query.keys.dtype()));
  std::vector<float> q(d), key(d);
  p.query.read_q(static_cast<size_t>(p.head), q);
  Sample sample{.n = n};
  double square = 0, fourth = 0, drawn = 0;
  float log_scale = -std::numeric_limits<float>::infinity();
  int certain = 0;
  for (int i = 0; i < n; ++i) {
    p.query.keys.read(p.ids[i], key.data());
    const float score = std::min(p.scores[static_cast<size_t>(p.ids[i] - p.first_id)], p.threshold);
    const double off = std::exp(p.scale * dot_of(q, key) - p.origin - score) - 1;  // w / h - 1
    drawn += std::exp(double{score} - p.threshold);
    sample.correction += off * std::exp(double{score} - p.threshold + p.bias[i]);
    square += off * off;
    fourth += off * off * off * off;
    if (p.bias[i] > 0)
      log_scale = p.scores[static_cast<size_t>(p.ids[i] - p.first_id)] + p.bias[i];
    else
      ++certain;
  }
  if (certain == n) {
    // The scale of probabilities does not show: undrawn mass, if any, counts as error.
    const double undrawn = std::max(0.0, mass_below(p, p.threshold) - drawn);
    sample.deviation = undrawn * std::max(1.0, n > 0 ? std::sqrt(square / n) : 0.0);
    return sample;
  }
  // Of a key that is drawn with probability h / c the variance is (w - h)^2 (c / h - 1), at most
  // off^2 h c.
  const double c = std::exp(double{log_scale} - p.threshold);
  const double uncertain = std::max(0.0, mass_below(p, log_scale) - certain * c);
  const double mean = square / n, of_mean = std::max(0.0, fourth / n - mean * mean) / n;
  sample.deviation = std::sqrt((mean + kUpper95 * std::sqrt(of_mean)) * c * uncertain);
  return sample;
}

/// A sample large enough for the error asked for, as far as the share allows, and the error of it.
int draw_for_error(const HybridTailParams& p, KeyList& list) {
  const double mass = mass_below(p, p.threshold);
  const double most =
      std::max<double>(kErrorPilot, p.spec.sample * static_cast<double>(p.scores.size()));
  double wanted = std::min<double>(kErrorPilot, most);
  Sample sample = judge(p, draw(p, wanted), list);
  const auto error = [&](const Sample& s) {
    const double total = std::max(p.exact_mass + mass + s.correction, p.exact_mass);
    return total > 0 ? kWithin95 * s.deviation / total : 0;
  };
  if (const double found = error(sample); found > p.spec.error && wanted < most) {
    // The variance falls as the sample grows.
    wanted = std::min(most, wanted * std::pow(found / p.spec.error, 2));
    sample = judge(p, draw(p, wanted), list);
  }
  list.error = static_cast<float>(error(sample));
  return sample.n;
}

}  // namespace

void add_tail(const HybridTailParams& p, KeyList& list) {
  int sampled = 0;
  if (p.spec.tail == recipe::HybridTail::sampled)
    sampled = p.spec.budget == recipe::HybridBudget::error
                  ? draw_for_error(p, list)
                  : draw(p, p.spec.sample * static_cast<double>(p.scores.size()));
  mass_below(p, p.threshold);
  for (int i = 0; i < sampled; ++i) {
    const auto at = static_cast<size_t>(p.ids[i] - p.first_id);
    p.masses[at / kMeanKeys] -= std::exp(std::min(p.scores[at] - p.threshold, 0.0f) + p.bias[i]);
  }
  if (sampled > 0) list.segments.push_back({p.ids, sampled, p.bias, nullptr});
  list.tail = {p.rows, p.masses, p.threshold + p.origin};
}

}  // namespace tandem::kv
