#include "kernels/quant/quantize.h"

#include "kernels/quant/group_vectors.h"

namespace tandem {
namespace {

/// Sixteen numbers, one for each multiple of a scale, or partial sums.
constexpr int kParts = kScaleFactors / kW;
struct Sixteen {
  Vec part[kParts];
};

template <class F>
TANDEM_INLINE Sixteen sixteen_of(F&& f) {
  Sixteen all;
#pragma GCC unroll 16
  for (int j = 0; j < kParts; ++j) all.part[j] = f(j);
  return all;
}

/// Adds halves to each other until one number is left: the same tree on every ISA.
TANDEM_INLINE float sum_of(Sixteen a) {
#pragma GCC unroll 4
  for (int half = kParts / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int j = 0; j < half; ++j) a.part[j] = a.part[j] + a.part[j + half];
  return reduce_add(a.part[0]);
}

/// The least and the largest weight of a group, 0 among them.
struct Ends {
  float low, high;
};

TANDEM_INLINE Ends ends_of(const float* x, int n) {
  Vec low = zero(), high = zero();
  each_vector(n, [&](int i, int lanes) {
    const Vec some = part_of(x + i, lanes);
    low = min(low, some);
    high = max(high, some);
  });
  return {-reduce_max(zero() - low), reduce_max(high)};
}

/// The first weight of the largest magnitude.
TANDEM_INLINE float extreme_of(const float* x, Ends ends) {
  if (ends.high != -ends.low) return ends.high > -ends.low ? ends.high : ends.low;
  while (*x != ends.high && *x != ends.low) ++x;
  return *x;
}

/// The scale of a group before it is rounded.
TANDEM_INLINE float scale_of(const CodeRule& rule, Code code, const float* x, Ends ends) {
  if (rule.has_zero) return (ends.high - ends.low) / rule.high;
  if (code == Code::i4) return extreme_of(x, ends) / -8.0f;
  return (ends.high > -ends.low ? ends.high : -ends.low) / 127.0f;
}

/// Scales as they are stored; -0 becomes 0.
TANDEM_INLINE Vec stored_scale(Vec scale) {
  f16 stored[kW];
  store(stored, max(set1(-kMostScale), min(set1(kMostScale), scale)));
  return load(stored) + zero();
}

TANDEM_INLINE float first_of(Vec a) {
  float all[kW];
  store(all, a);
  return all[0];
}

TANDEM_INLINE Mask is_zero(Vec scale) { return lt(abs(scale), set1(0x1p-24f)); }

/// The zero that puts `low` at the least code.
TANDEM_INLINE Vec zero_point(const CodeRule& rule, Vec low, Vec scale) {
  if (!rule.has_zero) return zero();
  const Vec steps = round((zero() - low) / scale);
  return select(is_zero(scale), zero(), max(zero(), min(set1(rule.high), steps)));
}

/// Scales and the values that the error of a weight under each needs.
struct Trial {
  Vec scale, zero_at, inverse;
  Vec low, high;  // limits of q, moved by kRounder
};

/// Tries multiples of a scale, and of the least weight.
TANDEM_INLINE Trial trial_of(const CodeRule& rule, Ends ends, float unrounded, Vec factor) {
  const Vec scale = stored_scale(set1(unrounded) * factor);
  const Vec zero_at = zero_point(rule, set1(ends.low) * factor, scale);
  return {scale, zero_at, select(is_zero(scale), zero(), set1(1.0f) / scale),
          set1(kRounder) + (set1(rule.low) - zero_at),
          set1(kRounder) + (set1(rule.high) - zero_at)};
}

TANDEM_INLINE Vec squared_error(const Trial& t, Vec x) {
  const Vec moved = x * t.inverse + set1(kRounder);
  const Vec q = min(t.high, max(t.low, moved)) - set1(kRounder);
  const Vec error = x - t.scale * q;
  return error * error;
}

/// Error of a group under one scale.
TANDEM_INLINE float error_of(const Trial& t, const float* x, int n) {
  Sixteen sums = sixteen_of([](int) { return zero(); });
  for (int i = 0; i < n; i += kScaleFactors)
    sums = sixteen_of([&](int j) {
      const int at = i + j * kW;
      return at < n ? sums.part[j] + squared_error(t, part_of(x + at, n - at)) : sums.part[j];
    });
  return sum_of(sums);
}

/// Errors of a group under all multiples of a scale, one in each lane.
TANDEM_INLINE Sixteen errors_of(const Trial (&t)[kParts], const float* x, int n) {
  Sixteen even = sixteen_of([](int) { return zero(); }), odd = even;
  int i = 0;
  for (; i + 2 <= n; i += 2) {
    const Vec a = set1(x[i]), b = set1(x[i + 1]);
    even = sixteen_of([&](int j) { return even.part[j] + squared_error(t[j], a); });
    odd = sixteen_of([&](int j) { return odd.part[j] + squared_error(t[j], b); });
  }
  if (i < n)
    even = sixteen_of([&](int j) { return even.part[j] + squared_error(t[j], set1(x[i])); });
  return sixteen_of([&](int j) { return even.part[j] + odd.part[j]; });
}

struct Factors {
  float of[kScaleFactors];
};
constexpr Factors all_factors() {
  Factors f = {};
  for (int i = 0; i < kScaleFactors; ++i) f.of[i] = scale_factor(i);
  return f;
}
constexpr Factors kFactors = all_factors();

/// A stored scale, and the zero before the code's offset.
struct Chosen {
  float scale, zero_at;
};

TANDEM_INLINE Chosen first_of(const Trial& t) { return {first_of(t.scale), first_of(t.zero_at)}; }

/// The multiple of a scale that leaves the least error.
TANDEM_INLINE Chosen best_of(const CodeRule& rule, Ends ends, float unrounded, const float* x,
                             int n) {
  Trial trials[kParts];
#pragma GCC unroll 16
  for (int j = 0; j < kParts; ++j)
    trials[j] = trial_of(rule, ends, unrounded, load(kFactors.of + j * kW));
  float errors[kScaleFactors], scales[kScaleFactors], zeros[kScaleFactors];
  const Sixteen all = errors_of(trials, x, n);
#pragma GCC unroll 16
  for (int j = 0; j < kParts; ++j) {
    store(errors + j * kW, all.part[j]);
    store(scales + j * kW, trials[j].scale);
    store(zeros + j * kW, trials[j].zero_at);
  }
  const Trial own = trial_of(rule, ends, unrounded, set1(1.0f));
  float least_error = error_of(own, x, n);
  Chosen best = first_of(own);
  for (int i = 0; i < kScaleFactors; ++i)
    if (errors[i] < least_error) {
      least_error = errors[i];
      best = {scales[i], zeros[i]};
    }
  return best;
}

/// Writes a group's codes; those past the n weights are the code of 0.
TANDEM_INLINE void write_codes(const QuantizeParams& p, const CodeRule& rule, Chosen by,
                               const float* x, int n, uint8_t* out) {
  const Vec divisor = set1(by.scale == 0 ? 1.0f : by.scale), add = set1(by.zero_at + rule.offset);
  const Vec low = set1(rule.low - by.zero_at), high = set1(rule.high - by.zero_at);
  const int live = by.scale == 0 ? 0 : n;
  int8_t codes[kCodesAtOnce];
  for (int i = 0; i < p.group; i += kCodesAtOnce) {
    for (int at = 0; at < kCodesAtOnce; at += kW) {
      const int left = live - i - at;
      const Vec steps = left > 0 ? round(part_of(x + i + at, left) / divisor) : zero();
      store(codes + at, min(high, max(low, steps)) + add);
    }
    const int some = least(kCodesAtOnce, p.group - i);
    if (p.code == Code::i4)
      pack_pairs(out + i / 2, codes, (some + 1) / 2);
    else
      memcpy(out + i, codes, static_cast<size_t>(some));
  }
}

/// Returns the end of the group's bytes.
TANDEM_INLINE uint8_t* write_fp8_group(const QuantizeParams& p, const float* x, int n,
                                       uint8_t* out) {
  const Ends ends = ends_of(x, n);
  const float scale = (ends.high > -ends.low ? ends.high : -ends.low) / kMostFp8;
  memset(out, 0, static_cast<size_t>(p.group));
  if (scale > 0)
    for (int i = 0; i < n; ++i) out[i] = fp8_code(x[i] / scale);
  memcpy(out + p.group, &scale, sizeof(scale));
  return out + p.group + sizeof(scale);
}

/// Returns the end of the group's bytes.
TANDEM_INLINE uint8_t* write_group(const QuantizeParams& p, const CodeRule& rule, const float* x,
                                   int n, uint8_t* out) {
  if (p.code == Code::fp8) return write_fp8_group(p, x, n, out);
  const Ends ends = ends_of(x, n);
  const float unrounded = scale_of(rule, p.code, x, ends);
  const Chosen by = p.search ? best_of(rule, ends, unrounded, x, n)
                             : first_of(trial_of(rule, ends, unrounded, set1(1.0f)));
  write_codes(p, rule, by, x, n, out);
  out += CodeBits{p.code, p.group}.bytes();
  f16 stored[kW];
  store(stored, set1(by.scale));
  memcpy(out, stored, sizeof(f16));
  out += sizeof(f16);
  if (rule.has_zero) *out++ = static_cast<uint8_t>(static_cast<int>(by.zero_at + rule.offset));
  return out;
}

}  // namespace

void TANDEM_ISA_FN(quantize)(const QuantizeParams& p, Range rows) {
  const CodeRule rule = rule_of(p.code, p.zero);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const float* x = p.in + row * p.width;
    uint8_t* out = p.out + row * p.row_bytes;
    for (int i = 0; i < p.width; i += p.group)
      out = write_group(p, rule, x + i, least(p.group, p.width - i), out);
  }
}

}  // namespace tandem
