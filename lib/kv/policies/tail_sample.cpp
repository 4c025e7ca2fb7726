#include "kv/policies/tail_sample.h"

#include <cmath>

#include "base/rng.h"

namespace tandem::kv {

int drop_excluded(int32_t* ids, float* bias, int n, std::span<const int32_t> excluded) {
  size_t next = 0;
  int kept = 0;
  for (int i = 0; i < n; ++i) {
    while (next < excluded.size() && excluded[next] < ids[i]) ++next;
    if (next < excluded.size() && excluded[next] == ids[i]) continue;
    ids[kept] = ids[i];
    if (bias != nullptr) bias[kept] = bias[i];
    ++kept;
  }
  return kept;
}

int sample_uniform(int n, int first_id, double stratum, uint64_t key, int32_t* ids, float* bias) {
  PhiloxStream draw(key);
  const auto weight = static_cast<float>(std::log(stratum));
  int count = 0;
  for (double begin = 0; begin < n; begin += stratum) {
    const double at = begin + draw.uniform() * stratum;
    if (at >= n) break;  // of the last, shorter run: drawn with the same probability as all others
    ids[count] = first_id + static_cast<int32_t>(at);
    bias[count++] = weight;
  }
  return count;
}

}  // namespace tandem::kv
