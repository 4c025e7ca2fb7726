#include "kernels/selection/sample_tail.h"

#include "base/log2.h"
#include "kernels/selection/keep_lanes.h"

namespace tandem {
namespace {

constexpr int kLanes = Vec::kLanes;
constexpr float kInf = __builtin_inff();
constexpr int kSample = 1024;  // scores that the scale is found from
constexpr int kRounds = 8;

/// -log(x) for normal x: exponent plus a polynomial for log2 of the mantissa, exact at its ends.
/// Plain arithmetic, for the compiler to put into vectors.
TANDEM_INLINE float minus_log(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float t = __builtin_bit_cast(float, (bits & 0x007fffffu) | 0x3f800000u) - 1.0f;
  const float q =
      0.442527273f +
      t * (-0.275386207f + t * (0.181154204f + t * (-0.0948147534f + t * 0.0252855060f)));
  return -kLn2 * (exponent + t + t * (1.0f - t) * q);
}

/// Mixes all bits of x (the finaliser of MurmurHash3, public domain constants).
TANDEM_INLINE uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// Scores that the scale is found from: all, or some at even distances.
struct Sample {
  float weights[kSample + kLanes];  // gain * score, -inf where left out
  int n = 0;                        // whole vectors
  float each = 1;                   // keys that one stands for
};

void take_sample(Sample& s, const SampleTailParams& p) {
  const int64_t step = (p.n + kSample - 1) / kSample;
  for (int64_t i = 0; i < p.n && s.n < kSample; i += step)
    s.weights[s.n++] = p.scores[i] <= p.threshold ? p.gain * p.scores[i] : -kInf;
  s.each = static_cast<float>(p.n) / static_cast<float>(s.n);
  while (s.n % kLanes != 0) s.weights[s.n++] = -kInf;
}

/// The scale, as a logarithm, at which probabilities min(1, exp(weight - scale)) sum to `wanted`.
float solve_log_scale(const Sample& s, float wanted) {
  Vec top = set1(-kInf);
  for (int i = 0; i < s.n; i += kLanes) top = max(top, load(s.weights + i));
  float log_scale = reduce_max(top);
  if (!(log_scale > -kInf)) return kInf;
  for (int round = 0; round < kRounds; ++round) {
    Vec below = zero(), capped = zero();
    for (int i = 0; i < s.n; i += kLanes) {
      const Vec w = load(s.weights + i) - set1(log_scale);
      // Strictly: a weight at the scale is the first to give way, or equal ones would all be kept.
      const Mask full = lt(zero(), w);
      below = below + select(full, zero(), exp(w));
      capped = capped + select(full, set1(1), zero());
    }
    const float rest = wanted - s.each * reduce_add(capped), sum = s.each * reduce_add(below);
    if (rest <= 0 || sum <= 0) break;
    const float change = -minus_log(sum / rest);
    log_scale += change;
    if (change < 0.01f && change > -0.01f) break;
  }
  return log_scale;
}

}  // namespace

void TANDEM_ISA_FN(draw_exponentials)(const DrawExponentialsParams& p, Range ids) {
  for (int i = ids.begin; i < ids.end; ++i) {
    const uint32_t x = mix(static_cast<uint32_t>(i) * 0x9e3779b1u + p.key);
    // 23 bits as a number in [1, 2); two minus it is in (0, 1] without rounding.
    p.draws[i] = minus_log(2.0f - __builtin_bit_cast(float, (x >> 9) | 0x3f800000u));
  }
}

int TANDEM_ISA_FN(sample_tail)(const SampleTailParams& p) {
  if (p.n == 0) return 0;
  Sample sample;
  take_sample(sample, p);
  const float log_scale = solve_log_scale(sample, p.wanted);
  if (log_scale == kInf) return 0;
  const Vec gain = set1(p.gain), scale = set1(log_scale), limit = set1(p.threshold);
  int n = 0;
  const auto keep = [&](int i, Vec score, Vec draw, Mask valid) {
    const Mask taken = at_least(fma(gain, score, draw), scale) & at_least(limit, score) & valid;
    store_ids(p.ids + n, pack(iota(i), taken));
    n += count_set(taken);
  };
  int i = 0;
  const Mask all = first_lanes(kLanes);
  for (; i + kLanes <= p.n; i += kLanes) keep(i, load(p.scores + i), load(p.draws + i), all);
  if (const int rest = p.n - i; rest > 0)
    keep(i, load_n(p.scores + i, rest), load_n(p.draws + i, rest), first_lanes(rest));
  for (int j = 0; j < n; ++j) {
    const float minus_log_u = log_scale - p.gain * p.scores[p.ids[j]];
    p.bias[j] = minus_log_u > 0 ? minus_log_u : 0;
    p.ids[j] += p.first_id;
  }
  return n;
}

}  // namespace tandem
