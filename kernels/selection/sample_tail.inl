#include "kernels/selection/sample_tail.h"

#include "kernels/selection/keep_lanes.h"
#include "kernels/selection/tail_numbers.h"

namespace tandem {
namespace {

/// Scores that the scale is found from, times the gain; -inf: left out.
struct Scores {
  float weights[kScaleScores];
  int n = 0;
};

void take_scores(Scores& s, const SampleTailParams& p) {
  const int step = scale_step(p.n);
  for (int64_t i = 0; i < p.n; i += step)
    s.weights[s.n++] = p.scores[i] <= p.threshold ? p.gain * p.scores[i] : -kInf;
}

/// The scale as a logarithm; inf: nothing to sample from.
float find_log_scale(const Scores& s, float each, float wanted) {
  float log_scale = -kInf;
  for (int i = 0; i < s.n; ++i) log_scale = s.weights[i] > log_scale ? s.weights[i] : log_scale;
  if (!(log_scale > -kInf)) return kInf;
  for (int round = 0; round < kScaleRounds; ++round) {
    int n_above = 0;
    uint32_t units = 0;
    for (int i = 0; i < s.n; ++i) {
      const float w = s.weights[i] - log_scale;
      // Strictly: a weight at the scale is the first to give way, or equal ones would all be kept.
      const bool above = w > 0;
      n_above += above ? 1 : 0;
      units += above ? 0 : weight_units(above ? 0 : w);
    }
    const float change = scale_change({n_above, units}, each, wanted);
    log_scale += change;
    if (ends_search(change)) break;
  }
  return log_scale;
}

/// Lists the keys that a scale takes.
int take(const SampleTailParams& p, float log_scale) {
  const Vec gain = set1(p.gain), scale = set1(log_scale), limit = set1(p.threshold);
  int n = 0;
  const auto keep = [&](int i, Vec score, Vec draw, Mask valid) {
    const Mask taken = at_least(gain * score + draw, scale) & at_least(limit, score) & valid;
    store_ids(p.ids + n, pack(iota(i), taken));
    n += count_set(taken);
  };
  int i = 0;
  const Mask all = first_lanes(kW);
  for (; i + kW <= p.n; i += kW) keep(i, load(p.scores + i), load(p.draws + i), all);
  if (const int rest = p.n - i; rest > 0)
    keep(i, load_n(p.scores + i, rest), load_n(p.draws + i, rest), first_lanes(rest));
  return n;
}

}  // namespace

void TANDEM_ISA_FN(draw_exponentials)(const DrawExponentialsParams& p, Range ids) {
  for (int i = ids.begin; i < ids.end; ++i) p.draws[i] = exponential_of(p.key, i);
}

int TANDEM_ISA_FN(sample_tail)(const SampleTailParams& p) {
  if (p.n == 0) return 0;
  Scores scores;
  take_scores(scores, p);
  const float each = static_cast<float>(p.n) / static_cast<float>(scores.n);
  float log_scale = find_log_scale(scores, each, p.wanted);
  int n = take(p, log_scale);
  while (n > most_sampled(p.wanted)) n = take(p, log_scale += kScaleRise);
  for (int j = 0; j < n; ++j) {
    const float minus_log_u = log_scale - p.gain * p.scores[p.ids[j]];
    p.bias[j] = minus_log_u > 0 ? minus_log_u : 0;
    p.ids[j] += p.first_id;
  }
  return n;
}

}  // namespace tandem
