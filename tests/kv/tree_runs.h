#pragma once
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
  const kv::Step step = engine.cache().begin(kv::Phase::extend, rows, trees);
  engine.model().forward(tokens, step, engine.cache());
  for (int32_t r = 0; r < step.n_rows; ++r)
    logits.push_back(row_of(engine.on_host(engine.model().logits(std::span(&r, 1))), 0));
  return step;
}

}  // namespace tandem::test
