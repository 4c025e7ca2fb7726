#include "speculate/tree/shape_search.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"

namespace tandem::speculate {
namespace {

/// Below it a difference of means is rounding.
constexpr double kLeastRise = 1e-9;
/// Moves that are tried, the most promising first, before a shape counts as the best around.
constexpr size_t kMostMoves = 512;
/// Moves in a row that may fail to raise the tokens of texts held out.
constexpr int kPatience = 8;

bool is_held_out(size_t place) { return place % 3 == 2; }

/// The rounds of the texts held out, or of the others.
TreeRounds part_of(const TreeRounds& rounds, bool held_out, const std::string& where) {
  std::map<int32_t, size_t> place;
  for (const int32_t text : std::set(rounds.text.begin(), rounds.text.end()))
    place.emplace(text, place.size());
  if (place.size() < 3)
    throw input_error(where,
                      "has steps of {} texts, expected at least 3, because some are held out",
                      place.size())
        .hint("record steps of several prompts: sequoia-acceptance --prompts FILE");
  return rounds.of_texts([&](int32_t text) { return is_held_out(place.at(text)) == held_out; });
}

int parent_of(const TokenTree& tree, int node) { return tree.parent[static_cast<size_t>(node)]; }

SubShape with_node(SubShape shape, int parent) {
  ++shape[static_cast<size_t>(parent)];
  return shape;
}

SubShape without(SubShape shape, int parent) {
  --shape[static_cast<size_t>(parent)];
  return shape;
}

}  // namespace

ShapeSearch::ShapeSearch(const TreeRounds& rounds, AcceptBy rule, const std::string& where,
                         Interrupted interrupted)
    : all_(rounds, rule),
      searched_(part_of(rounds, false, where), rule),
      held_out_(part_of(rounds, true, where), rule),
      interrupted_(std::move(interrupted)) {}

int ShapeSearch::largest(const Bounds& bounds) const {
  const TokenTree& tree = all_.tree();
  std::vector<char> is_in(tree.parent.size());
  is_in[0] = 1;
  int n = 1;
  for (size_t v = 1; v < is_in.size(); ++v) {
    is_in[v] = is_in[static_cast<size_t>(tree.parent[v])] && tree.depth[v] < bounds.max_levels &&
               tree.child_index[v] < bounds.max_branch;
    n += is_in[v];
  }
  return n;
}

ShapeSearch::Frontier ShapeSearch::frontier_of(const SubShape& shape, const Bounds& bounds) const {
  const TokenTree& tree = all_.tree();
  Frontier frontier;
  std::vector<int> nodes = {0};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto v = static_cast<size_t>(nodes[i]);
    const int n = shape[v];
    for (int k = 0; k < n; ++k) nodes.push_back(tree.first_child[v] + k);
    if (n > 0 && shape[static_cast<size_t>(tree.first_child[v] + n - 1)] == 0)
      frontier.leaves.push_back(tree.first_child[v] + n - 1);
    if (n < std::min(tree.n_children[v], bounds.max_branch) &&
        tree.depth[v] + 2 <= bounds.max_levels)
      frontier.parents.push_back(nodes[i]);
  }
  return frontier;
}

SubShape ShapeSearch::by_scores(int size, const Bounds& bounds) const {
  const TokenTree& tree = all_.tree();
  const std::vector<double> scores = searched_.sequoia_scores();
  SubShape shape(tree.parent.size());
  while (size_of(shape) < size) {
    const auto score = [&](int parent) {
      const auto v = static_cast<size_t>(parent);
      return scores[static_cast<size_t>(tree.first_child[v] + shape[v])];
    };
    const std::vector<int> parents = frontier_of(shape, bounds).parents;
    ++shape[static_cast<size_t>(*std::ranges::max_element(parents, {}, score))];
  }
  return shape;
}

void ShapeSearch::grow(int size, const Bounds& bounds,
                       const std::function<void(const SubShape&)>& on_shape) const {
  SubShape shape(all_.tree().parent.size());
  while (size_of(shape) < size) {
    poll(interrupted_);
    const std::vector<int> parents = frontier_of(shape, bounds).parents;
    if (parents.empty()) return;
    shape = with_node(shape, *std::ranges::max_element(parents, {}, [&](int parent) {
                        return searched_.tokens(with_node(shape, parent));
                      }));
    on_shape(shape);
  }
}

SubShape ShapeSearch::grow(int size, const Bounds& bounds) const {
  SubShape grown;
  grow(size, bounds, [&](const SubShape& shape) { grown = shape; });
  return grown;
}

std::optional<SubShape> ShapeSearch::best_move(const SubShape& shape, double tokens,
                                               const Bounds& bounds) const {
  struct Move {
    int leaf, parent;
    double promise;
  };
  const TokenTree& tree = all_.tree();
  const Frontier frontier = frontier_of(shape, bounds);
  std::vector<Move> moves;
  std::vector<double> added;
  for (const int parent : frontier.parents)
    added.push_back(searched_.tokens(with_node(shape, parent)) - tokens);
  for (const int leaf : frontier.leaves) {
    const int from = parent_of(tree, leaf);
    const double removed = searched_.tokens(without(shape, from)) - tokens;
    for (size_t i = 0; i < frontier.parents.size(); ++i)
      if (const int to = frontier.parents[i]; to != leaf && to != from)
        moves.push_back({leaf, to, removed + added[i]});
  }
  std::ranges::stable_sort(moves, std::greater<>(), &Move::promise);
  for (size_t i = 0; i < std::min(moves.size(), kMostMoves); ++i) {
    SubShape moved = with_node(without(shape, parent_of(tree, moves[i].leaf)), moves[i].parent);
    if (searched_.tokens(moved) > tokens + kLeastRise) return moved;
  }
  return {};
}

SubShape ShapeSearch::climb(SubShape shape, const Bounds& bounds, int* moves) const {
  SubShape best = shape;
  double best_held = held_out_.tokens(shape), tokens = searched_.tokens(shape);
  int n_moves = 0, n_best = 0;
  while (n_moves - n_best < kPatience) {
    poll(interrupted_);
    std::optional<SubShape> moved = best_move(shape, tokens, bounds);
    if (!moved) break;
    shape = std::move(*moved);
    tokens = searched_.tokens(shape);
    ++n_moves;
    if (const double held = held_out_.tokens(shape); held > best_held) {
      best = shape;
      best_held = held;
      n_best = n_moves;
    }
  }
  if (moves != nullptr) *moves = n_best;
  return best;
}

FoundShape ShapeSearch::find(int size, const Bounds& bounds,
                             const std::optional<SubShape>& start) const {
  FoundShape found;
  found.size = size;
  found.start = found.best = start ? *start : by_scores(size, bounds);
  double best = held_out_.tokens(found.start);
  std::vector<SubShape> starts = {found.start, grow(size, bounds)};
  if (size <= std::min(all_.tree().levels(), bounds.max_levels))
    if (std::optional<SubShape> chain = shape_in(all_.tree(), chain_tree(size)))
      starts.push_back(std::move(*chain));
  for (const SubShape& from : starts) {
    int moves = 0;
    const SubShape climbed = climb(from, bounds, &moves);
    const double held = held_out_.tokens(climbed);
    if (held <= best) continue;
    best = held;
    found.best = climbed;
    found.moves = moves;
  }
  found.start_tokens = held_out_.mean_tokens(found.start);
  found.best_tokens = held_out_.mean_tokens(found.best);
  found.gain = held_out_.gain(found.best, found.start);
  found.searched_tokens = searched_.tokens(found.best);
  return found;
}

ShapeSearch::Choice ShapeSearch::choose(std::span<const int> sizes, const Bounds& bounds,
                                        const StepCost& steps) const {
  const auto price = [&](const SubShape& shape) {
    return price_tree(tree_of(shape, all_.tree()), all_.tokens(shape), steps);
  };
  const auto cheaper = [](const PricedTree& a, const PricedTree& b) {
    return a.cost.ms_per_token < b.cost.ms_per_token;
  };
  std::vector<Choice> grown;
  const int most_levels = std::min(bounds.max_levels, all_.tree().levels());
  for (int levels = 2; levels <= most_levels; ++levels) {
    const Bounds within{levels, bounds.max_branch};
    grow(sizes.back(), within, [&](const SubShape& shape) {
      if (std::ranges::binary_search(sizes, size_of(shape))) grown.push_back({price(shape), shape});
    });
  }
  if (grown.empty())
    throw recipe_error("tree.sizes", "no recorded tree of these sizes fits the limits")
        .hint("raise the limits, or choose other sizes");
  std::ranges::stable_sort(grown, cheaper, &Choice::best);
  constexpr size_t kClimbed = 3;
  Choice best = grown.front();
  for (size_t i = 0; i < std::min(grown.size(), kClimbed); ++i) {
    const FoundShape found = find(grown[i].best.size, {grown[i].best.levels, bounds.max_branch});
    const PricedTree priced = price(found.best);
    if (cheaper(priced, best.best)) best = {priced, found.best};
  }
  return best;
}

}  // namespace tandem::speculate
