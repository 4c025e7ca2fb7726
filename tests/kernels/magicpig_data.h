#pragma once
// Data that the tests of MagicPIG's parts share: made from seeds by splitmix64, so that expected
// values could be computed elsewhere, in double.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <vector>

namespace tandem::test {

using Doubles = std::vector<double>;

/// Output i = 1, 2, ... of the generator.
inline uint64_t splitmix64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + i * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The first n normal numbers of a seed: two uniforms each, no sine partner.
inline Doubles normals(uint64_t seed, size_t n) {
  const auto uniform = [&](uint64_t i) {
    return static_cast<double>(splitmix64(seed, i + 1) >> 11) * 0x1p-53;
  };
  Doubles z(n);
  for (size_t j = 0; j < n; ++j)
    z[j] = std::sqrt(-2 * std::log(1 - uniform(2 * j))) *
           std::cos(2 * std::numbers::pi * uniform(2 * j + 1));
  return z;
}

inline double dot(const double* a, const double* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
inline void normalize(Doubles& a) {
  const double norm = std::sqrt(dot(a.data(), a.data(), a.size()));
  for (double& x : a) x /= norm;
}

/// One head: a query, n keys in a narrow cone nearly opposite to it, values that follow the score.
struct MagicPigData {
  size_t n, d;
  Doubles q;     // [d]
  Doubles k, v;  // [n, d]

  MagicPigData(size_t n_tokens, size_t width, uint64_t s) : n(n_tokens), d(width) {
    Doubles e = normals(1000 * s + 1, d), g = normals(1000 * s + 2, d);
    normalize(e);
    const double along = dot(g.data(), e.data(), d);
    for (size_t j = 0; j < d; ++j) g[j] -= along * e[j];
    normalize(g);
    Doubles h = normals(1000 * s + 5, d);
    normalize(h);
    Doubles t = normals(1000 * s + 3, n);
    for (double& x : t) x *= 2;
    k = normals(1000 * s + 4, n * d);
    v = normals(1000 * s + 6, n * d);
    for (size_t j = 0; j < d; ++j) q.push_back(12 * e[j]);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < d; ++j) {
        k[i * d + j] += -10 * e[j] + 6 * g[j] + t[i] * e[j];
        v[i * d + j] += 2 * t[i] * h[j];
      }
  }

  /// Mean of keys [begin, end).
  Doubles mean_key(size_t begin, size_t end) const {
    Doubles mean(d, 0.0);
    for (size_t i = begin; i < end; ++i)
      for (size_t j = 0; j < d; ++j) mean[j] += k[i * d + j];
    for (double& x : mean) x /= static_cast<double>(end - begin);
    return mean;
  }
};

/// Projections [d, n_bits], row-major: column l * K + b gives bit b of table l.
inline Doubles magicpig_projections(uint64_t seed, size_t d, size_t n_bits) {
  return normals(seed, d * n_bits);
}

}  // namespace tandem::test
