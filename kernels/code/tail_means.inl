#include "kernels/code/tail_means.h"

#include <math.h>

#include "kernels/simd/vec.h"

namespace tandem {
namespace {

using namespace simd;

constexpr int kTailSlices = 4;  // vectors of the output in registers

/// o[c ..] = (list o + tail sum of masses times means) for `n` of n_vecs * kLanes channels.
template <int n_vecs>
TANDEM_INLINE void add_slice(const AddMeansParams& p, int c, Vec list, Vec tail) {
  Vec sum[n_vecs];
  for (Vec& s : sum) s = zero();
  const float* mass = p.masses;
  for (int s = 0; s < p.n_rows; ++s) {
    const bf16* row = p.rows[s].means + c;
    for (int i = 0; i < p.rows[s].n; ++i, ++mass, row += p.d)
      for (int v = 0; v < n_vecs; ++v)
        sum[v] = fma(set1(*mass), load(row + v * Vec::kLanes), sum[v]);
  }
  for (int v = 0; v < n_vecs; ++v) {
    float* o = p.o + c + v * Vec::kLanes;
    store(o, fma(tail, sum[v], list * load(o)));
  }
}

}  // namespace

void TANDEM_ISA_FN(tail_masses)(const TailMassesParams& p) {
  const Vec most = set1(p.most), origin = set1(p.origin);
  for (int begin = 0; begin < p.n; begin += kMeanKeys) {
    const int end = least(p.n, begin + kMeanKeys);
    Vec sum = zero();
    int i = begin;
    for (; i + Vec::kLanes <= end; i += Vec::kLanes)
      sum = sum + exp(min(load(p.scores + i), most) - origin);
    if (i < end)
      sum = sum + select(first_lanes(end - i),
                         exp(min(load_n(p.scores + i, end - i), most) - origin), zero());
    p.masses[begin / kMeanKeys] = reduce_add(sum);
  }
}

void TANDEM_ISA_FN(cluster_masses)(const ClusterMassesParams& p) {
  const Vec most = set1(p.most), origin = set1(p.origin);
  float weights[Vec::kLanes];
  for (int i = 0; i < p.n; i += Vec::kLanes) {
    const int n = least(Vec::kLanes, p.n - i);
    store(weights, exp(min(load_n(p.scores + i, n), most) - origin));
    for (int j = 0; j < n; ++j) p.masses[p.ids[i + j]] += weights[j];
  }
}

void TANDEM_ISA_FN(nearest_clusters)(const NearestClustersParams& p) {
  constexpr int kVecs = kValueClusters / Vec::kLanes < 4 ? kValueClusters / Vec::kLanes : 4;
  float distances[kValueClusters];
  for (int i = 0; i < p.n; ++i) {
    const float* row = p.numbers + static_cast<int64_t>(i) * p.d;
    for (int first = 0; first < kValueClusters; first += kVecs * Vec::kLanes) {
      Vec sum[kVecs];
      for (int v = 0; v < kVecs; ++v) sum[v] = zero();
      for (int j = 0; j < p.d; ++j)
        for (int v = 0; v < kVecs; ++v)
          sum[v] = fma(
              set1(row[j]),
              load(p.centers + static_cast<int64_t>(j) * kValueClusters + first + v * Vec::kLanes),
              sum[v]);
      for (int v = 0; v < kVecs; ++v)
        store(distances + first + v * Vec::kLanes,
              load(p.squares + first + v * Vec::kLanes) - (sum[v] + sum[v]));
    }
    int nearest = 0;
    for (int c = 1; c < kValueClusters; ++c)
      if (distances[c] < distances[nearest]) nearest = c;
    p.ids[i] = static_cast<uint8_t>(nearest);
  }
}

void TANDEM_ISA_FN(add_means)(const AddMeansParams& p) {
  float mass = 0;
  int n = 0;
  for (int s = 0; s < p.n_rows; ++s)
    for (int i = 0; i < p.rows[s].n; ++i) mass += p.masses[n++];
  const float most = *p.lse > p.origin ? *p.lse : p.origin;
  if (!(most > -kInf && most < kInf)) return;
  const float list = expf(*p.lse - most), tail = expf(p.origin - most), total = list + tail * mass;
  if (!(total > 1e-3f * list && total > 0)) return;
  const Vec of_list = set1(list / total), of_tail = set1(tail / total);
  int c = 0;
  for (; c + kTailSlices * Vec::kLanes <= p.d; c += kTailSlices * Vec::kLanes)
    add_slice<kTailSlices>(p, c, of_list, of_tail);
  for (; c + Vec::kLanes <= p.d; c += Vec::kLanes) add_slice<1>(p, c, of_list, of_tail);
  for (; c < p.d; ++c) {
    float sum = 0;
    const float* masses = p.masses;
    for (int s = 0; s < p.n_rows; ++s)
      for (int i = 0; i < p.rows[s].n; ++i)
        sum += *masses++ * to_f32(p.rows[s].means[static_cast<int64_t>(i) * p.d + c]);
    p.o[c] = list / total * p.o[c] + tail / total * sum;
  }
  *p.lse = most + logf(total);
}

}  // namespace tandem
