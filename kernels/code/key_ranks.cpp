#include "kernels/code/key_ranks.h"

#include <algorithm>
#include <array>
#include <functional>

namespace tandem {

float sampled_score(const float* scores, int n, int m) {
  const KeySample sample(n);
  std::array<float, KeySample::kMostKeys> x;
  for (int tile = 0; tile < sample.tiles; ++tile)
    std::copy_n(scores + sample.key(tile), KeySample::kTileKeys,
                x.begin() + tile * KeySample::kTileKeys);
  const auto at = x.begin() + sample.rank(m, n);
  std::nth_element(x.begin(), at, x.begin() + sample.size(), std::greater<>());
  return *at;
}

void group_ranks(const GroupRanksParams& p) {
  for (int i = 0; i < p.n; ++i) p.ranks[i] = p.scores[i] - p.references[0];
  for (int h = 1; h < p.n_heads; ++h)
    for (int i = 0; i < p.n; ++i)
      p.ranks[i] = std::max(p.ranks[i], p.scores[h * p.stride + i] - p.references[h]);
}

}  // namespace tandem
