#include "speculate/tree/tree_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::speculate {
namespace {

// Sizes in pixels.
constexpr double kMargin = 24, kCaptionHeight = 28, kLargestRadius = 11, kSmallestRadius = 1.6,
                 kFewestPixels = 320;
// Above this number of leaves there is no room for numbers.
constexpr int kMostLabelledLeaves = 40;

/// Columns of the nodes, leaves 0, 1, 2, ... from left to right.
std::vector<double> columns(const TokenTree& tree) {
  const size_t size = tree.parent.size();
  // Leaves below each node; children have larger numbers than their parents.
  std::vector<int> n_leaves(size), first_leaf(size);
  for (size_t v = size; v-- > 0;) {
    if (tree.n_children[v] == 0) n_leaves[v] = 1;
    if (v > 0) n_leaves[static_cast<size_t>(tree.parent[v])] += n_leaves[v];
  }
  std::vector<double> x(size);
  for (size_t v = 0; v < size; ++v) {
    int leaf = first_leaf[v];
    for (int k = 0; k < tree.n_children[v]; ++k) {
      const auto child = static_cast<size_t>(tree.first_child[v] + k);
      first_leaf[child] = leaf;
      leaf += n_leaves[child];
    }
  }
  for (size_t v = size; v-- > 0;) {
    const auto first = static_cast<size_t>(tree.first_child[v]);
    const auto last = first + static_cast<size_t>(std::max(0, tree.n_children[v] - 1));
    x[v] = tree.n_children[v] == 0 ? first_leaf[v] : (x[first] + x[last]) / 2;
  }
  return x;
}

int count_leaves(const TokenTree& tree) {
  return static_cast<int>(std::ranges::count(tree.n_children, 0));
}

/// Its area is in proportion to the probability, as far as it can be seen.
double radius(double score) { return std::max(kSmallestRadius, kLargestRadius * std::sqrt(score)); }

/// A probability in few characters: 1, .63, .012, 4e-4.
std::string short_number(double p) {
  if (p == 0 || p >= 0.995) return p == 0 ? "0" : "1";
  if (p < 0.001) return fmt::format("{:.0e}", p);
  return fmt::format("{:.{}f}", p, p < 0.095 ? 3 : 2).substr(1);
}

}  // namespace

std::string tree_svg(const TokenTree& tree, const AcceptanceVector& acceptance) {
  const auto scores = node_scores(tree, acceptance);
  const auto column = columns(tree);
  const int n_leaves = count_leaves(tree);
  const bool labelled = n_leaves <= kMostLabelledLeaves;
  const double pitch = labelled ? 34 : 10, level_height = labelled ? 60 : 44;
  const double span = pitch * (n_leaves - 1);
  const double width = std::max(kFewestPixels, span + 2 * kMargin);
  const double height = kCaptionHeight + 2 * kMargin + level_height * (tree.levels() - 1) + 12;
  const auto x = [&](size_t v) { return (width - span) / 2 + pitch * column[v]; };
  const auto y = [&](size_t v) { return kCaptionHeight + kMargin + level_height * tree.depth[v]; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 "
      "0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#ffffff\"/>\n<text x=\"{2:.0f}\" y=\"20\" font-size=\"13\" fill=\"#333333\">{3} "
      "nodes, {4} levels, {5:.4g} tokens per step</text>\n<g stroke=\"#9aa5b1\" fill=\"none\">\n",
      width, height, kMargin / 2, tree.size(), tree.levels(), expected_tokens(tree, acceptance));
  for (size_t v = 1; v < scores.size(); ++v) {
    const auto parent = static_cast<size_t>(tree.parent[v]);
    const double middle = (y(parent) + y(v)) / 2;
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f}C{0:.1f} {2:.1f} {3:.1f} {2:.1f} {3:.1f} {4:.1f}\" "
        "stroke-width=\"{5:.2f}\"/>\n",
        x(parent), y(parent), middle, x(v), y(v), 0.5 + 2.5 * std::sqrt(scores[v]));
  }
  svg += "</g>\n<g fill=\"#0072b2\" stroke=\"#ffffff\" stroke-width=\"0.5\">\n";
  for (size_t v = 0; v < scores.size(); ++v)
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.2f}\"><title>node {}, child {}, probability "
        "{:.4g}</title></circle>\n",
        x(v), y(v), radius(scores[v]), v, v == 0 ? 0 : tree.child_index[v] + 1, scores[v]);
  svg += "</g>\n";
  if (labelled) {
    // A white rim keeps the numbers legible where an edge runs through them.
    svg +=
        "<g font-size=\"9\" fill=\"#333333\" text-anchor=\"middle\" stroke=\"#ffffff\" "
        "stroke-width=\"3\" paint-order=\"stroke\">\n";
    for (size_t v = 0; v < scores.size(); ++v)
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x(v),
                         y(v) + radius(scores[v]) + 10, short_number(scores[v]));
    svg += "</g>\n";
  }
  return svg + "</svg>\n";
}

std::string tree_dot(const TokenTree& tree, const AcceptanceVector& acceptance) {
  const auto scores = node_scores(tree, acceptance);
  std::string dot =
      "digraph tree {\n  ordering=out;\n  node [shape=circle, fixedsize=true, fontsize=9];\n";
  for (size_t v = 0; v < scores.size(); ++v)
    dot += fmt::format("  n{} [label=\"{:.3g}\"];\n", v, scores[v]);
  for (size_t v = 1; v < scores.size(); ++v)
    dot +=
        fmt::format("  n{} -> n{} [label=\"{}\"];\n", tree.parent[v], v, tree.child_index[v] + 1);
  return dot + "}\n";
}

}  // namespace tandem::speculate
