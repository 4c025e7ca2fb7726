#pragma once
// Products with random codes in f64, and bounds for those of a GPU.
#include <cmath>

#include "kernels/coded_case.h"
#include "ops/quantizing.h"

namespace tandem::test {

inline std::vector<float> weights_of(const CodedCase& c) {
  std::vector<float> all(static_cast<size_t>(c.out) * static_cast<size_t>(c.m.in));
  ops::dequantize(all.data(), DType::f32, c.codes.data(), format_of(c.m), c.out, c.m.in);
  return all;
}

struct Wanted {
  std::vector<double> y, bound;
};

/// The largest scale of CodedCase, and code with its base or a minimum.
inline constexpr double kMostScale = 0.1, kMostSum = 128 + 15 + 5;
/// The largest scale and minimum of two levels: 127 times CodedCase's factors.
inline constexpr double kMostProduct = 127 * 0.01, kMostMinimum = 127 * 0.05;

/// The most that rounded scales move a weight.
inline double rounding_of(const CodedMatrix& m) {
  if (!m.two_level()) return 0;
  const int codes = m.code == Code::i4 ? 15 : m.code == Code::i5 ? 31 : 63;
  return (kMostProduct * codes + (m.zero == Zero::minimum ? kMostMinimum : 0)) * 0x1p-11;
}

/// The product in f64, and a bound for the distance of one on the GPU. Each sum errs by at most one
/// spacing of the sum of magnitudes, of codes with a base of 128. Widened weights are rounded to
/// bf16.
inline Wanted wanted(const std::vector<float>& weights, ActBuffer& x, int64_t rows, int64_t out,
                     int64_t in, const float* bias, const std::vector<float>* start, bool widened,
                     double rounding = 0) {
  Wanted w;
  std::vector<double> row(static_cast<size_t>(in));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < in; ++i)
      row[static_cast<size_t>(i)] = x.get(static_cast<size_t>(r * in + i));
    for (int64_t o = 0; o < out; ++o) {
      double sum = bias ? bias[o] : 0.0, size = std::abs(sum);
      if (start) sum += (*start)[w.y.size()], size += std::abs((*start)[w.y.size()]);
      const float* const at = weights.data() + o * in;
      double inputs = 0;
      for (int64_t i = 0; i < in; ++i) {
        const double p = row[static_cast<size_t>(i)] * at[i];
        sum += p;
        size += std::abs(p);
        inputs += std::abs(row[static_cast<size_t>(i)]);
      }
      w.y.push_back(sum);
      w.bound.push_back(size * (static_cast<double>(in + 2) * 0x1p-22 + (widened ? 0x1p-8 : 0)) +
                        (kMostScale * kMostSum * 0x1p-22 + rounding) * inputs);
    }
  }
  return w;
}

inline ActBuffer random_input(int64_t n) {
  ActBuffer b(DType::bf16, static_cast<size_t>(n));
  PhiloxStream stream(9, 3);
  fill(b, stream, 1.0f);
  return b;
}

/// The largest distance in parts of its bound; NaN counts as infinite.
inline double worst(const std::vector<float>& got, const Wanted& want, double rounding = 0) {
  double most = got.size() == want.y.size() ? 0 : INFINITY;
  for (size_t i = 0; i < want.y.size() && i < got.size(); ++i) {
    const double d =
        std::abs(got[i] - want.y[i]) / (want.bound[i] + rounding * std::abs(want.y[i]) + 1e-30);
    most = d <= most ? most : d;
  }
  return most;
}

}  // namespace tandem::test
