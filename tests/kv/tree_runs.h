#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "engine_runs.h"

/// Trees of tokens, for tests of steps that verify them.
namespace tandem::test {

/// A tree of rows and their tokens.
struct TokenTree {
  std::vector<int> parent;
  Ids tokens;

  /// Rows from the root to a node.
  std::vector<int> path(int node) const {
    std::vector<int> rows;
    for (; node >= 0; node = parent[static_cast<size_t>(node)]) rows.insert(rows.begin(), node);
    return rows;
  }
  Ids chain(int node) const {
    Ids ids;
    for (const int row : path(node)) ids.push_back(tokens[static_cast<size_t>(row)]);
    return ids;
  }
};

inline TokenTree small_tree(const decode::Engine& engine) {
  return {{-1, 0, 0, 1, 1, 2, -1, 6, 4, 8}, random_ids(engine, 10, 21)};
}

/// `n` nodes, each under an earlier one drawn at random: more than one word of mask from 65 on.
inline TokenTree random_tree(const decode::Engine& engine, int n) {
  TokenTree t{{}, random_ids(engine, n, 22)};
  PhiloxStream draw(23);
  for (int i = 0; i < n; ++i)
    t.parent.push_back(static_cast<int>(draw.below(static_cast<uint32_t>(i) + 1)) - 1);
  return t;
}

/// Two sequences, a tree each, in one forward. `logits` gets a row for each node, left tree first.
inline kv::Step verify(decode::Engine& engine, int slot_a, const TokenTree& a, int slot_b,
                       const TokenTree& b, std::vector<Row>& logits) {
  const kv::SeqRows rows[] = {{slot_a, static_cast<int>(a.tokens.size()), true},
                              {slot_b, static_cast<int>(b.tokens.size()), true}};
  const kv::Tree trees[] = {{a.parent}, {b.parent}};
  Ids tokens = a.tokens;
  tokens.insert(tokens.end(), b.tokens.begin(), b.tokens.end());
  kv::Step step = engine.cache().begin({.rows = rows, .trees = trees});
  engine.model().forward(tokens, step, engine.cache());
  for (int32_t r = 0; r < step.n_rows; ++r)
    logits.push_back(row_of(engine.on_host(engine.logits(std::span(&r, 1))), 0));
  return step;
}

/// The nodes level by level, parents of a level in their order: as it goes through begin_levels.
struct LevelTree : TokenTree {
  std::vector<int> level_ends;
};

inline LevelTree by_levels(const TokenTree& t) {
  const auto n = t.parent.size();
  std::vector<int> depth(n), order, place(n);
  for (size_t i = 0; i < n; ++i)
    depth[i] = t.parent[i] < 0 ? 0 : depth[static_cast<size_t>(t.parent[i])] + 1;
  LevelTree sorted;
  for (int level = 0; order.size() < n; ++level) {
    for (size_t i = 0; i < n; ++i)
      if (depth[i] == level) order.push_back(static_cast<int>(i));
    sorted.level_ends.push_back(static_cast<int>(order.size()));
  }
  for (size_t i = 0; i < n; ++i) place[static_cast<size_t>(order[i])] = static_cast<int>(i);
  for (const int i : order) {
    const int parent = t.parent[static_cast<size_t>(i)];
    sorted.parent.push_back(parent < 0 ? -1 : place[static_cast<size_t>(parent)]);
    sorted.tokens.push_back(t.tokens[static_cast<size_t>(i)]);
  }
  return sorted;
}

/// Keeps the first kept[b] rows of paths[b], which count from the first behind the committed
/// tokens, as a round does: their keys move on the cache's device, then they are committed.
/// place    puts an array where the cache computes
inline void commit_paths(
    kv::Cache& cache, const kv::Step& step, std::span<const int> kept,
    std::span<const std::vector<int>> paths,
    const std::function<const int32_t*(const std::vector<int32_t>&)>& place =
        [](const std::vector<int32_t>& array) { return array.data(); }) {
  constexpr int kNodes = 1 << 10;
  const auto n = static_cast<size_t>(step.n_seqs);
  std::vector<int32_t> nodes(n * kNodes, -1), n_accepted(kept.begin(), kept.end());
  for (size_t b = 0; b < n; ++b)
    for (size_t i = 0; i < static_cast<size_t>(kept[b]); ++i)
      nodes[b * kNodes + i] = paths[b][i] + 1;  // below the last committed token
  cache.move_paths(step, {.path = place(nodes),
                          .n_accepted = place(n_accepted),
                          .position = place(step.base),
                          .n_seqs = step.n_seqs,
                          .n_nodes = kNodes,
                          .n_nodes_held = kNodes,
                          .max_depth = std::ranges::max(kept)});
  cache.commit(step, kept);
}

/// As verify, a forward a level. The trees have as many levels as the lower one, whose last takes
/// all that is left.
inline kv::Step verify_levels(decode::Engine& engine, int slot_a, LevelTree a, int slot_b,
                              LevelTree b, std::vector<Row>& logits) {
  const size_t n_levels = std::min(a.level_ends.size(), b.level_ends.size());
  for (LevelTree* t : {&a, &b}) {
    t->level_ends.resize(n_levels);
    t->level_ends.back() = static_cast<int>(t->tokens.size());
  }
  const kv::SeqRows rows[] = {{slot_a, a.level_ends.back(), true},
                              {slot_b, b.level_ends.back(), true}};
  const kv::Tree trees[] = {{a.parent}, {b.parent}};
  const std::vector<int> level_ends[] = {a.level_ends, b.level_ends};
  std::vector<kv::Step> steps =
      engine.cache().begin_levels({.rows = rows, .trees = trees}, level_ends);
  std::vector<Row> of_a, of_b;
  for (const kv::Step& step : steps) {
    Ids tokens;
    for (const auto& [tree, s] : {std::pair{&a, 0}, {&b, 1}}) {
      const auto first = tree->tokens.begin() + step.tentative_of(s);
      tokens.insert(tokens.end(), first, first + step.rows_of(s));
    }
    engine.model().forward(tokens, step, engine.cache());
    for (int32_t r = 0; r < step.n_rows; ++r)
      (r < step.row_begin[1] ? of_a : of_b)
          .push_back(row_of(engine.on_host(engine.logits(std::span(&r, 1))), 0));
  }
  logits = std::move(of_a);
  logits.insert(logits.end(), of_b.begin(), of_b.end());
  return std::move(steps.back());
}

}  // namespace tandem::test
