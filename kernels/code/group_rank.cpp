#include "kernels/code/group_rank.h"

#include <algorithm>
#include <array>
#include <functional>

namespace tandem {

float group_reference(const float* scores, int n, int chosen) {
  const KeySample sample(n);
  std::array<float, KeySample::kMostTiles * KeySample::kTileKeys> x;
  for (int tile = 0; tile < sample.tiles; ++tile)
    std::copy_n(scores + sample.key(tile), KeySample::kTileKeys,
                x.begin() + tile * KeySample::kTileKeys);
  const auto at = x.begin() + sample.rank(chosen, n);
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
