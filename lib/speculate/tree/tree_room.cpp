#include "speculate/tree/tree_room.h"

#include <algorithm>

namespace tandem::speculate {

TreeRoom TreeRoom::of(const TokenTree& tree) {
  TreeRoom room{.nodes = tree.size(), .levels = tree.levels()};
  room.parents =
      static_cast<int>(std::ranges::count_if(tree.n_children, [](int n) { return n > 0; }));
  if (tree.levels() == 1) return room;
  const std::vector<int> widths = tree.widths();
  room.inner = tree.size() - widths.back();
  room.widest = *std::max_element(widths.begin(), widths.end() - 1);
  return room;
}

TreeRoom TreeRoom::any(int nodes) {
  const int below_root = std::max(nodes - 1, 1);
  return {.nodes = nodes,
          .levels = nodes,
          .inner = below_root,
          .parents = nodes - 1,
          .widest = std::max(nodes - 2, 1)};
}

TreeRoom TreeRoom::with(const TreeRoom& other) const {
  return {.nodes = std::max(nodes, other.nodes),
          .levels = std::max(levels, other.levels),
          .inner = std::max(inner, other.inner),
          .parents = std::max(parents, other.parents),
          .widest = std::max(widest, other.widest)};
}

}  // namespace tandem::speculate
