#include <algorithm>
#include <cmath>
#include <vector>

#include "base/convert.h"
#include "kernels/code/tail_means.h"

namespace tandem {

void tail_masses_ref(const TailMassesParams& p) {
  for (int begin = 0; begin < p.n; begin += kMeanKeys) {
    double sum = 0;
    for (int i = begin; i < std::min(p.n, begin + kMeanKeys); ++i)
      sum += std::exp(double{std::min(p.scores[i], p.most)} - p.origin);
    p.masses[begin / kMeanKeys] = static_cast<float>(sum);
  }
}

void cluster_masses_ref(const ClusterMassesParams& p) {
  double sums[kValueClusters] = {};
  for (int i = 0; i < p.n; ++i)
    sums[p.ids[i]] += std::exp(double{std::min(p.scores[i], p.most)} - p.origin);
  for (int c = 0; c < kValueClusters; ++c) p.masses[c] += static_cast<float>(sums[c]);
}

void nearest_clusters_ref(const NearestClustersParams& p) {
  for (int i = 0; i < p.n; ++i) {
    double least = 0;
    for (int c = 0; c < kValueClusters; ++c) {
      double distance = p.squares[c];
      for (int64_t j = 0; j < p.d; ++j)
        distance -= 2.0 * p.numbers[int64_t{i} * p.d + j] * p.centers[j * kValueClusters + c];
      if (c > 0 && distance >= least) continue;
      least = distance;
      p.ids[i] = static_cast<uint8_t>(c);
    }
  }
}

void add_means_ref(const AddMeansParams& p) {
  const auto d = static_cast<size_t>(p.d);
  std::vector<double> sum(d);
  double mass = 0;
  const float* masses = p.masses;
  for (int s = 0; s < p.n_rows; ++s)
    for (int i = 0; i < p.rows[s].n; ++i, ++masses) {
      mass += *masses;
      for (size_t c = 0; c < d; ++c)
        sum[c] += double{*masses} * to_float(p.rows[s].means[static_cast<size_t>(i) * d + c]);
    }
  const double most = std::max(*p.lse, p.origin);
  if (!std::isfinite(most)) return;
  const double list = std::exp(*p.lse - most), tail = std::exp(p.origin - most);
  const double total = list + tail * mass;
  if (total <= 1e-3 * list || total <= 0) return;
  for (size_t c = 0; c < d; ++c)
    p.o[c] = static_cast<float>((list * p.o[c] + tail * sum[c]) / total);
  *p.lse = static_cast<float>(most + std::log(total));
}

}  // namespace tandem
