#include "speculate/round/simulated_acceptance.h"

#include <algorithm>

#include "base/rng.h"

namespace tandem::speculate {

std::vector<int> simulated_path(const TokenTree& tree, const AcceptanceVector& acceptance,
                                const ops::RoundName& round) {
  std::vector<int> path;
  for (int node = 0;;) {
    const auto i = static_cast<size_t>(node);
    const std::vector<double>& chances = acceptance.row(tree.depth[i]);
    const auto words =
        draw4(static_cast<uint64_t>(round.seed), static_cast<uint32_t>(round.sequence),
              static_cast<uint32_t>(round.position), DrawPurpose::accept,
              static_cast<uint32_t>(node) | static_cast<uint32_t>(round.stage) << 16);
    double left = uniform53(words[0], words[1]);
    int child = 0;
    const int n = std::min(tree.n_children[i], static_cast<int>(chances.size()));
    while (child < n && left >= chances[static_cast<size_t>(child)])
      left -= chances[static_cast<size_t>(child++)];
    if (child == n) return path;
    node = tree.first_child[i] + child;
    path.push_back(node);
  }
}

}  // namespace tandem::speculate
