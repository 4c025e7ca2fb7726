#include "speculate/tree/tree_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tandem::speculate {
namespace {

/// A tree of these widths, root level first.
PricedTree price(std::span<const int> widths, double expected, const StepCost& steps) {
  return {.size = std::accumulate(widths.begin(), widths.end(), 0),
          .levels = static_cast<int>(widths.size()),
          .expected = expected,
          .cost = steps.round(widths, expected)};
}

struct GridPoint {
  int size, levels;
  double expected, least_ms;
};

/// All sizes and bounds of levels, the most promising first. A bound that adds nothing to the one
/// before it is left out.
std::vector<GridPoint> grid(const TreeTable& table, std::span<const int> sizes,
                            const StepCost& steps) {
  std::vector<GridPoint> points;
  for (const int n : sizes) {
    double before = 0;
    for (int l = 1; l <= std::min(n, table.levels()); ++l) {
      const auto f = table.expected(n, l);
      if (!f || *f <= before) continue;
      points.push_back({n, l, *f, steps.least(n, l, *f)});
      before = *f;
    }
  }
  std::ranges::stable_sort(points, {}, &GridPoint::least_ms);
  return points;
}

/// The two cheapest trees, priced with their widths; the grid's prices end the search.
std::vector<PricedTree> two_best(const TreeTable& table, std::span<const int> sizes,
                                 const StepCost& steps) {
  std::vector<PricedTree> best;
  const auto rank = [](const PricedTree& t) {
    return std::tuple(t.cost.ms_per_token, t.size, t.levels);
  };
  for (const GridPoint& point : grid(table, sizes, steps)) {
    if (best.size() == 2 && point.least_ms > best[1].cost.ms_per_token) break;
    PricedTree tree = price(table.tree(point.size, point.levels).widths(), point.expected, steps);
    const auto place = std::ranges::upper_bound(best, rank(tree), {}, rank);
    best.insert(place, std::move(tree));
    if (best.size() > 2) best.pop_back();
  }
  return best;
}

std::optional<PricedTree> best_chain(const AcceptanceVector& acceptance, int max_size,
                                     const StepCost& steps) {
  std::optional<PricedTree> best;
  double score = 1, expected = 1;
  std::vector<int> widths = {1};
  for (int n = 2; n <= max_size; ++n) {
    score *= acceptance.row(n - 2)[0];
    expected += score;
    widths.push_back(1);
    PricedTree chain = price(widths, expected, steps);
    if (!best || chain.cost.ms_per_token < best->cost.ms_per_token) best = std::move(chain);
  }
  return best;
}

TimeCurve scaled(TimeCurve curve, double factor, double fixed) {
  for (double& ms : curve.ms) ms = fixed + factor * (ms - fixed);
  return curve;
}

}  // namespace

PricedTree price_tree(const TokenTree& tree, double expected, const StepCost& steps) {
  return price(tree.widths(), expected, steps);
}

TreeChoice choose_tree(const TreeTable& table, const AcceptanceVector& acceptance,
                       std::span<const int> sizes, int max_levels, const StepCost& steps) {
  const auto best = two_best(table, sizes, steps);
  if (best.empty())
    throw recipe_error("tree.sizes", "no tree of {} nodes fits {} levels", fmt::join(sizes, ", "),
                       max_levels)
        .hint("raise tree.max_levels or tree.max_branch, or lower tree.sizes");
  TreeChoice choice;
  choice.best = best[0];
  choice.plain_ms = steps.plain_ms();
  if (best.size() > 1) choice.runner_up = best[1];
  choice.chain = best_chain(acceptance, std::min(sizes.back(), max_levels), steps);

  const auto widths = table.tree(choice.best.size, choice.best.levels).widths();
  constexpr double kError = 1.25;
  for (const double factor : {1 / kError, kError})
    for (const bool draft : {true, false}) {
      StepCost changed = steps;
      if (draft)
        changed.draft = scaled(steps.draft, factor, 0);
      else
        changed.target = scaled(steps.target, factor, choice.plain_ms);
      const PricedTree then = two_best(table, sizes, changed)[0];
      const PricedTree kept = price(widths, choice.best.expected, changed);
      choice.sensitivity.push_back(
          {.change =
               fmt::format("{} x {:.3g}", draft ? "draft" : "target beyond one token", factor),
           .size = then.size,
           .levels = then.levels,
           .loss = kept.cost.ms_per_token / then.cost.ms_per_token - 1});
    }
  return choice;
}

}  // namespace tandem::speculate
