#include "kv/policies/hybrid_tail.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kv/policies/centered_keys.h"
#include "ops/selection.h"

namespace tandem::kv {
namespace {

constexpr double kNormal95 = 1.96;  // deviations that 95 of 100 normal numbers stay within
constexpr int kPilot = 64;          // keys that the error is first judged from

/// Sampled keys and how their weights differ from the estimates.
struct Sample {
  int n = 0;
  double correction = 0;  // of the mass: sum of (w - h) / probability
  double variance = 0;    // of the correction, estimated from the sample
};

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

/// Reads the keys of the sample that was drawn last: what their weights and estimates make of the
/// mass, relative to exp(threshold).
Sample judge(const HybridTailParams& p, int n) {
  const auto d = static_cast<size_t>(p.query.keys.head_dim());
  std::vector<float> q(d), key(d);
  p.query.read_q(static_cast<size_t>(p.head), q);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  Sample sample{.n = n};
  for (int i = 0; i < n; ++i) {
    p.query.keys.read(p.ids[i], key.data());
    const double score = p.scores[static_cast<size_t>(p.ids[i] - p.first_id)];
    const double probability = std::exp(-double{p.bias[i]});
    const double weight = std::exp(scale * dot_of(q, key) - p.origin - p.threshold);
    const double estimate = std::exp(std::min<double>(score - p.threshold, 0));
    sample.correction += (weight - estimate) / probability;
    sample.variance += (1 - probability) * std::pow((weight - estimate) / probability, 2);
  }
  return sample;
}

/// A sample large enough for the error asked for, as far as the share allows, and the error of it.
int draw_for_error(const HybridTailParams& p, double mass, KeyList& list) {
  const double most =
      std::max<double>(kPilot, p.spec.sample * static_cast<double>(p.scores.size()));
  double wanted = std::min<double>(kPilot, most);
  Sample sample = judge(p, draw(p, wanted));
  const auto error = [&](const Sample& s) {
    const double total = std::max(p.exact_mass + mass + s.correction, p.exact_mass);
    return total > 0 ? kNormal95 * std::sqrt(s.variance) / total : 0;
  };
  if (const double found = error(sample); found > p.spec.error && wanted < most) {
    // The variance falls as the sample grows.
    wanted = std::min(most, wanted * std::pow(found / p.spec.error, 2));
    sample = judge(p, draw(p, wanted));
  }
  list.error = static_cast<float>(error(sample));
  return sample.n;
}

}  // namespace

void add_tail(const HybridTailParams& p, KeyList& list) {
  const int n = static_cast<int>(p.scores.size()), runs = (n + kMeanKeys - 1) / kMeanKeys;
  ops::tail_masses({.masses = p.masses,
                    .scores = p.scores.data(),
                    .n = n,
                    .most = p.threshold,
                    .origin = p.threshold});
  if (p.spec.tail == recipe::HybridTail::sampled) {
    const double mass = std::accumulate(p.masses, p.masses + runs, 0.0);
    const int sampled = p.spec.budget == recipe::HybridBudget::error ? draw_for_error(p, mass, list)
                                                                     : draw(p, p.spec.sample * n);
    for (int i = 0; i < sampled; ++i) {
      const auto at = static_cast<size_t>(p.ids[i] - p.first_id);
      p.masses[at / kMeanKeys] -= std::exp(std::min(p.scores[at] - p.threshold, 0.0f) + p.bias[i]);
    }
    list.segments.push_back({p.ids, sampled, p.bias, nullptr});
  }
  list.tail = {p.rows, p.masses, p.threshold + p.origin};
}

}  // namespace tandem::kv
