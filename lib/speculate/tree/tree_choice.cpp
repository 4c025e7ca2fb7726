#include "speculate/tree/tree_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace tandem::speculate {
namespace {

/// Prices trees by one bucket of times.
class Prices {
 public:
  Prices(const TimeBucket& times, double overhead_ms, bool skip_deepest)
      : times_(times), overhead_ms_(overhead_ms), skip_deepest_(skip_deepest) {}

  /// A tree of these widths, root level first.
  PricedTree price(std::span<const int> widths, double expected) const {
    const int size = std::accumulate(widths.begin(), widths.end(), 0);
    PricedTree tree;
    tree.size = size;
    tree.levels = static_cast<int>(widths.size());
    tree.expected = expected;
    tree.cost.target_ms = times_.target.at(size);
    tree.cost.overhead_ms = overhead_ms_;
    for (const int w : widths.first(calls(widths.size())))
      tree.cost.draft_ms.push_back(times_.draft.at(w));
    const double draft_ms =
        std::accumulate(tree.cost.draft_ms.begin(), tree.cost.draft_ms.end(), 0.0);
    tree.cost.ms_per_token = (draft_ms + tree.cost.target_ms + overhead_ms_) / expected;
    return tree;
  }

  /// No tree of this size, number of levels and value costs less.
  double least(int size, int levels, double expected) const {
    const auto n_calls = static_cast<double>(calls(static_cast<size_t>(levels)));
    return (n_calls * times_.draft.smallest() + times_.target.at(size) + overhead_ms_) / expected;
  }

 private:
  size_t calls(size_t levels) const { return levels > 1 && skip_deepest_ ? levels - 1 : levels; }

  const TimeBucket& times_;
  double overhead_ms_;
  bool skip_deepest_;
};

struct GridPoint {
  int size, levels;
  double expected, least_ms;
};

/// All sizes and bounds of levels, the most promising first. A bound that adds nothing to the one
/// before it is left out.
std::vector<GridPoint> grid(const TreeTable& table, std::span<const int> sizes,
                            const Prices& prices) {
  std::vector<GridPoint> points;
  for (const int n : sizes) {
    double before = 0;
    for (int l = 1; l <= std::min(n, table.levels()); ++l) {
      const auto f = table.expected(n, l);
      if (!f || *f <= before) continue;
      points.push_back({n, l, *f, prices.least(n, l, *f)});
      before = *f;
    }
  }
  std::ranges::stable_sort(points, {}, &GridPoint::least_ms);
  return points;
}

/// The two cheapest trees, priced with their widths; the grid's prices end the search.
std::vector<PricedTree> two_best(const TreeTable& table, std::span<const int> sizes,
                                 const Prices& prices) {
  std::vector<PricedTree> best;
  const auto rank = [](const PricedTree& t) {
    return std::tuple(t.cost.ms_per_token, t.size, t.levels);
  };
  for (const GridPoint& point : grid(table, sizes, prices)) {
    if (best.size() == 2 && point.least_ms > best[1].cost.ms_per_token) break;
    PricedTree tree = prices.price(table.tree(point.size, point.levels).widths(), point.expected);
    const auto place = std::ranges::upper_bound(best, rank(tree), {}, rank);
    best.insert(place, std::move(tree));
    if (best.size() > 2) best.pop_back();
  }
  return best;
}

std::optional<PricedTree> best_chain(const AcceptanceVector& acceptance, int max_size,
                                     const Prices& prices) {
  std::optional<PricedTree> best;
  double score = 1, expected = 1;
  std::vector<int> widths = {1};
  for (int n = 2; n <= max_size; ++n) {
    score *= acceptance.row(n - 2)[0];
    expected += score;
    widths.push_back(1);
    PricedTree chain = prices.price(widths, expected);
    if (!best || chain.cost.ms_per_token < best->cost.ms_per_token) best = std::move(chain);
  }
  return best;
}

TimeCurve scaled(TimeCurve curve, double factor, double fixed) {
  for (double& ms : curve.ms) ms = fixed + factor * (ms - fixed);
  return curve;
}

}  // namespace

PricedTree price_tree(const TokenTree& tree, const AcceptanceVector& acceptance,
                      const TimeBucket& times, double overhead_ms, bool skip_deepest) {
  return price_tree(tree, expected_tokens(tree, acceptance), times, overhead_ms, skip_deepest);
}

PricedTree price_tree(const TokenTree& tree, double expected, const TimeBucket& times,
                      double overhead_ms, bool skip_deepest) {
  return Prices(times, overhead_ms, skip_deepest).price(tree.widths(), expected);
}

TreeChoice choose_tree(const TreeTable& table, const AcceptanceVector& acceptance,
                       std::span<const int> sizes, int max_levels, const TimeBucket& times,
                       double overhead_ms, bool skip_deepest) {
  const Prices prices(times, overhead_ms, skip_deepest);
  const auto best = two_best(table, sizes, prices);
  if (best.empty())
    throw recipe_error("tree.sizes", "no tree of {} nodes fits {} levels", fmt::join(sizes, ", "),
                       max_levels)
        .hint("raise tree.max_levels or tree.max_branch, or lower tree.sizes");
  TreeChoice choice;
  choice.best = best[0];
  choice.plain_ms = times.target.at(1);
  if (best.size() > 1) choice.runner_up = best[1];
  choice.chain = best_chain(acceptance, std::min(sizes.back(), max_levels), prices);

  const auto widths = table.tree(choice.best.size, choice.best.levels).widths();
  constexpr double kError = 1.25;
  for (const double factor : {1 / kError, kError})
    for (const bool draft : {true, false}) {
      TimeBucket changed = times;
      if (draft)
        changed.draft = scaled(times.draft, factor, 0);
      else
        changed.target = scaled(times.target, factor, choice.plain_ms);
      const Prices other(changed, overhead_ms, skip_deepest);
      const PricedTree then = two_best(table, sizes, other)[0];
      const PricedTree kept = other.price(widths, choice.best.expected);
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
