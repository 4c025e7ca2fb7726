#pragma once
// The tail of a selection from estimated weights and means of values: contract. No STL: included by
// sources with per-ISA flags.
#include "base/types.h"

namespace tandem {

inline constexpr int kMeanKeys = 256;  // keys whose values share a mean

/// Clusters of keys with similar values. Values become integers v / unit: distances and sums are
/// exact, and every body, on any device, gives the same clusters.
inline constexpr int kValueClusters = 64;
inline constexpr int kClusterSample = 1024;  // values that the clusters are made from, at most
inline constexpr int kClusterRounds = 4;
inline constexpr float kMostValue = 127;

/// The unit of values with this mean square: a power of two, so that v / unit is exact. Numbers up
/// to 127 hold 4 to 8 times the root.
constexpr float cluster_unit(double mean_square) {
  const double least = mean_square * 16 / (kMostValue * kMostValue);  // square of a unit
  float unit = 1;
  while (double{unit} * unit < least && unit < 0x1p60f) unit *= 2;
  while (double{unit} * unit / 4 >= least && unit > 0x1p-60f) unit /= 2;
  return unit;
}
/// The i-th of m sampled tokens of n.
constexpr int cluster_sample(int i, int m, int n) { return static_cast<int>(int64_t{i} * n / m); }
/// A center after a round in which `count` values with this sum of a coordinate were nearest: their
/// mean, rounded up from halves.
constexpr int8_t next_center(int8_t center, int sum, int count) {
  if (count == 0) return center;
  const int twice = 2 * sum + count, by = 2 * count;
  return static_cast<int8_t>(twice >= 0 ? twice / by : -((by - 1 - twice) / by));
}
/// Their mean, in units.
constexpr float cluster_mean(int8_t center, int sum, int count) {
  return count == 0 ? center : static_cast<float>(sum) / static_cast<float>(count);
}

struct NearestClustersParams {
  uint8_t* ids;          // [n] out
  const float* numbers;  // [n, d] whole, of magnitude 127 at most
  const float* centers;  // [d, kValueClusters] whole numbers
  const float* squares;  // [kValueClusters] of the centers
  int n, d;              // d <= 256: sums stay below 2^24
};
/// The cluster whose center is nearest, of several the first.
/// numerics exact
using NearestClustersFn = void(const NearestClustersParams&);
NearestClustersFn nearest_clusters_ref, nearest_clusters_scalar, nearest_clusters_avx2,
    nearest_clusters_avx512;

struct ClusterMassesParams {
  float* masses;        // [kValueClusters] in and out
  const float* scores;  // [n] as in TailMassesParams
  const uint8_t* ids;   // [n]
  int n;
  float most, origin;
};
/// Adds exp(min(score, most) - origin) of every key to its cluster's mass.
/// numerics f32; relative error 1e-6 where a cluster's terms are of one size
using ClusterMassesFn = void(const ClusterMassesParams&);
ClusterMassesFn cluster_masses_ref, cluster_masses_scalar, cluster_masses_avx2,
    cluster_masses_avx512;

struct TailMassesParams {
  float* masses;        // [ceil(n / kMeanKeys)] out
  const float* scores;  // [n] estimated log weights; -inf: not in the tail
  int n;
  float most;    // larger scores count as this one
  float origin;  // masses are relative to exp(origin)
};
/// Sums of exp(min(score, most) - origin) over runs of kMeanKeys keys.
/// numerics f32; relative error 1e-6 where a run's terms are of one size
using TailMassesFn = void(const TailMassesParams&);
TailMassesFn tail_masses_ref, tail_masses_scalar, tail_masses_avx2, tail_masses_avx512;

/// Means of values over runs of kMeanKeys keys.
struct MeanRows {
  const bf16* means;  // [n, d]
  int n;
};

struct AddMeansParams {
  float* o;              // [d] in: attention over a list; out: over the list and the tail
  float* lse;            // [1] in and out
  const float* masses;   // of all rows in turn, relative to exp(origin); corrected ones may be < 0
  const MeanRows* rows;  // [n_rows]
  int n_rows, d;
  float origin;
};
/// Attention over a list and a tail whose run b weighs masses[b] and has the value means[b]:
/// o = (exp(lse) o + exp(origin) sum_b masses[b] means[b]) / exp(lse'), lse' the log of all
/// weights. Where masses leave less than a thousandth of the list's weight, o and lse stay the
/// list's.
/// numerics f32; |o - ref| <= 1e-5 of the largest value and mean where no mass is negative
using AddMeansFn = void(const AddMeansParams&);
AddMeansFn add_means_ref, add_means_scalar, add_means_avx2, add_means_avx512;

}  // namespace tandem
