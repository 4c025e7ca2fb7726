#pragma once
// Random trees of draft tokens with logits of both models, for tests of verification.
#include <algorithm>

#include "kernels/sample_case.h"

namespace tandem::test {

/// Trees of several sequences; each node has a row in the logits of target and draft.
struct TreeCase {
  int vocab = 0;
  std::vector<int32_t> node_begin = {0}, tokens = {}, first_child = {}, n_children = {},
                       target_row = {}, draft_row = {}, seen = {}, seen_begin = {0};
  std::vector<float> target = {}, draft = {};
  std::vector<RowSum> draft_sums = {};
  uint64_t seed = 31;
  std::vector<int32_t> sequence = {}, position = {};  // names of random numbers

  int n_seqs() const { return static_cast<int>(node_begin.size()) - 1; }
  RoundNumbers numbers() const { return {&seed, sequence.data(), position.data()}; }
};

/// Numbers of children, breadth first, for a tree of at most `limit` nodes.
inline std::vector<int32_t> random_shape(PhiloxStream& stream, int limit, int vocab) {
  std::vector<int32_t> n_children;
  int known = 1;
  while (static_cast<int>(n_children.size()) < known) {
    const int most = std::min({4, vocab, limit - known});
    const int n = known == 1 ? std::min(most, 3)
                             : static_cast<int>(stream.below(static_cast<uint32_t>(most) + 1));
    n_children.push_back(n);
    known += n;
  }
  return n_children;
}

/// Adds a tree whose children are drawn by the rule.
/// shape    numbers of children; empty: a random one
inline void add_tree(TreeCase& c, PhiloxStream& stream, Nature nature, const KeepRule& draft,
                     std::vector<int32_t> shape = {}) {
  if (shape.empty()) shape = random_shape(stream, 24, c.vocab);
  const auto n = static_cast<int>(shape.size());
  const auto begin = static_cast<size_t>(c.node_begin.back());
  const int row_begin = static_cast<int>(begin);
  c.tokens.resize(begin + shape.size(), 0);
  std::vector<int32_t> parent(shape.size(), -1), seen;
  for (int i = 0; i < 5; ++i)
    seen.push_back(static_cast<int32_t>(stream.below(static_cast<uint32_t>(c.vocab))));
  const int32_t seen_begin[] = {0, static_cast<int32_t>(seen.size())}, node_begin = 0;
  const auto workspace = aligned_bytes(draw_children_workspace_bytes(c.vocab));
  int known = 1;
  for (int node = 0; node < n; ++node) {
    std::vector<float> row = random_logits(nature, c.vocab, stream.next());
    c.target.insert(c.target.end(), row.begin(), row.end());
    for (float& x : row) x += random_float(stream, 1.5f);  // a draft not far from the target
    const int n_below = shape[static_cast<size_t>(node)], name = node;
    const ParentRow at{0, node, known, n_below};
    std::fill_n(parent.begin() + known, n_below, node);
    const uint64_t seed = stream.next();
    RowSum sum{};
    cpu_table(Isa::scalar)
        .draw_children({.tokens = c.tokens.data() + begin,
                        .logits = row.data(),
                        .parents = &at,
                        .numbers = {&seed, &name, &name},
                        .n_rows = 1,
                        .vocab = c.vocab,
                        .rule = draft,
                        .seen = seen.data(),
                        .seen_begin = seen_begin,
                        .parent = parent.data(),
                        .node_begin = &node_begin,
                        .workspace = workspace.get(),
                        .sums = &sum},
                       {0, 1});
    c.draft_sums.push_back(sum);
    c.draft.insert(c.draft.end(), row.begin(), row.end());
    c.first_child.push_back(known);
    c.n_children.push_back(n_below);
    known += n_below;
    c.target_row.push_back(row_begin + node);
    c.draft_row.push_back(row_begin + node);
  }
  c.seen.insert(c.seen.end(), seen.begin(), seen.end());
  c.seen_begin.push_back(static_cast<int32_t>(c.seen.size()));
  c.node_begin.push_back(row_begin + n);
  c.sequence.push_back(static_cast<int32_t>(stream.below(1000)));
  c.position.push_back(static_cast<int32_t>(stream.below(100000)));
}

struct TreeResult {
  std::vector<std::vector<int32_t>> path;
  std::vector<int32_t> bonus, n_rounded;
  std::vector<std::vector<float>> logprobs;
  bool operator==(const TreeResult&) const = default;
};

/// As logit_stats; the logit minus lse rounds twice more at up to 200.
inline void require_close_logprobs(const TreeResult& got, const TreeResult& want) {
  for (size_t b = 0; b < want.logprobs.size(); ++b)
    for (size_t i = 0; i < want.logprobs[b].size(); ++i)
      REQUIRE(std::abs(got.logprobs[b][i] - double{want.logprobs[b][i]}) <= 2e-6 + 0x1p-16);
}

inline TreeResult verify(VerifyTreesFn* fn, const TreeCase& c, const KeepRule& target,
                         const KeepRule& draft, AcceptBy by, int n_drawn = kAllDrawn,
                         bool with_sums = false, const FloorRule& floor = {}) {
  const auto n = static_cast<size_t>(c.n_seqs());
  std::vector<int32_t> path(c.tokens.size()), n_accepted(n);
  std::vector<float> logprobs(c.tokens.size());
  TreeResult r{.path = {},
               .bonus = std::vector<int32_t>(n),
               .n_rounded = std::vector<int32_t>(n),
               .logprobs = {}};
  const auto workspace =
      aligned_bytes(verify_workspace_bytes(c.vocab, most_nodes(c.node_begin.data(), c.n_seqs())));
  const bool by_residual = weighs_draws(by);
  fn({.path = path.data(),
      .n_accepted = n_accepted.data(),
      .bonus = r.bonus.data(),
      .logprobs = logprobs.data(),
      .n_rounded = r.n_rounded.data(),
      .node_begin = c.node_begin.data(),
      .tokens = c.tokens.data(),
      .first_child = c.first_child.data(),
      .n_children = c.n_children.data(),
      .target_row = c.target_row.data(),
      .draft_row = by_residual ? c.draft_row.data() : nullptr,
      .target_logits = c.target.data(),
      .draft_logits = by_residual ? c.draft.data() : nullptr,
      .n_drawn = n_drawn,
      .seen = c.seen.data(),
      .seen_begin = c.seen_begin.data(),
      .numbers = c.numbers(),
      .n_seqs = c.n_seqs(),
      .vocab = c.vocab,
      .target = target,
      .draft = draft,
      .accept_by = by,
      .floor = floor,
      .workspace = workspace.get(),
      .draft_sums = with_sums ? c.draft_sums.data() : nullptr},
     {0, c.n_seqs()});
  for (size_t b = 0; b < n; ++b) {
    const auto at = c.node_begin[b];
    r.path.emplace_back(path.begin() + at, path.begin() + at + n_accepted[b]);
    const int n_tokens = n_accepted[b] + (r.bonus[b] != kInvalidToken);
    r.logprobs.emplace_back(logprobs.begin() + at, logprobs.begin() + at + n_tokens);
  }
  return r;
}

}  // namespace tandem::test
