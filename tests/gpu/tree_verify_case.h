#pragma once
// Trees of tokens and rows of logits to verify, and what verification gives, for the GPU tests.
#include <algorithm>
#include <vector>

#include "kernels/sample_case.h"
#include "kernels/tree/round_numbers.h"
#include "kernels/tree/verify_trees.h"
#include "kernels/variants.h"

namespace tandem::test {

inline constexpr uint64_t kSeed = 1234567890123;

/// Trees of several sequences that share rows of logits, since long ones take a while to make.
struct Trees {
  int vocab;
  std::vector<float> target = {}, draft = {};  // [rows, vocab], a draft not far from the target
  std::vector<int32_t> node_begin = {0}, tokens = {}, first_child = {}, n_children = {},
                       target_row = {}, draft_row = {}, depth = {}, seen = {}, seen_begin = {0},
                       sequence = {}, position = {};

  int n_seqs() const { return static_cast<int>(sequence.size()); }

  void add_rows(Nature nature, int n, PhiloxStream& stream) {
    for (int r = 0; r < n; ++r) {
      std::vector<float> row = random_logits(nature, vocab, stream.next());
      target.insert(target.end(), row.begin(), row.end());
      for (float& x : row) x += random_float(stream, 1.5f);
      draft.insert(draft.end(), row.begin(), row.end());
    }
  }

  /// A tree of at most `limit` nodes with at most `branch` children a node, drawn by the rule.
  /// is_full  whether each node has `branch` children while there are nodes left
  void add(int limit, int branch, const KeepRule& draft_rule, PhiloxStream& stream,
           bool is_full = false) {
    const auto begin = static_cast<size_t>(node_begin.back());
    const auto n_rows = static_cast<uint32_t>(draft.size() / static_cast<size_t>(vocab));
    std::vector<int32_t> level = {0}, parent = {-1};
    tokens.push_back(0);
    const uint32_t n_seen = stream.below(30);
    for (uint32_t i = 0; i < n_seen; ++i)
      seen.push_back(static_cast<int32_t>(stream.below(static_cast<uint32_t>(vocab))));
    seen_begin.push_back(static_cast<int32_t>(seen.size()));
    const auto tree_begin = static_cast<int32_t>(begin);
    const auto workspace = aligned_bytes(draw_children_workspace_bytes(vocab));
    for (size_t node = 0; node < level.size(); ++node) {
      const auto row = static_cast<int32_t>(stream.below(n_rows));
      const int known = static_cast<int>(level.size());
      const int most = std::min({branch, vocab, limit - known});
      const int n = node == 0 || is_full
                        ? most
                        : static_cast<int>(stream.below(static_cast<uint32_t>(most) + 1));
      const auto name = static_cast<int32_t>(node);
      const ParentRow at{0, name, tree_begin + known, n};
      const uint64_t seed = stream.next();
      parent.resize(parent.size() + static_cast<size_t>(n), name);
      tokens.resize(begin + static_cast<size_t>(known + n));
      cpu_table().draw_children({.tokens = tokens.data(),
                                 .logits = draft.data() + int64_t{row} * vocab,
                                 .parents = &at,
                                 .numbers = {&seed, &name, &name},
                                 .n_rows = 1,
                                 .vocab = vocab,
                                 .rule = draft_rule,
                                 .seen = seen.data(),
                                 .seen_begin = seen_begin.data() + seen_begin.size() - 2,
                                 .parent = parent.data() - begin,
                                 .node_begin = &tree_begin,
                                 .workspace = workspace.get()},
                                {0, 1});
      first_child.push_back(n > 0 ? known : -1);
      n_children.push_back(n);
      target_row.push_back(row);
      draft_row.push_back(n > 0 ? row : -1);
      depth.push_back(level[node]);
      level.resize(level.size() + static_cast<size_t>(n), level[node] + 1);
    }
    node_begin.push_back(static_cast<int32_t>(tokens.size()));
    sequence.push_back(static_cast<int32_t>(stream.below(1000)));
    position.push_back(static_cast<int32_t>(stream.below(100000)));
  }

  VerifyTreesParams params(const KeepRule& target_rule, const KeepRule& draft_rule,
                           AcceptBy by) const {
    VerifyTreesParams p{};
    p.n_seqs = n_seqs();
    p.vocab = vocab;
    p.target = target_rule;
    p.draft = draft_rule;
    p.accept_by = by;
    return p;
  }
};

/// Results with what a sequence does not use left as it was.
struct Verdicts {
  std::vector<int32_t> path, n_accepted, bonus, n_rounded;
  std::vector<float> logprobs;

  explicit Verdicts(const Trees& t)
      : path(t.tokens.size(), -7),
        n_accepted(t.sequence.size()),
        bonus(t.sequence.size()),
        n_rounded(t.sequence.size()),
        logprobs(t.tokens.size(), -7) {}
};

inline Verdicts verify_on_cpu(const Trees& t, VerifyTreesParams p) {
  Verdicts v(t);
  const auto workspace =
      aligned_bytes(verify_workspace_bytes(t.vocab, most_nodes(t.node_begin.data(), t.n_seqs())));
  p.path = v.path.data();
  p.n_accepted = v.n_accepted.data();
  p.bonus = v.bonus.data();
  p.logprobs = v.logprobs.data();
  p.n_rounded = v.n_rounded.data();
  p.node_begin = t.node_begin.data();
  p.tokens = t.tokens.data();
  p.first_child = t.first_child.data();
  p.n_children = t.n_children.data();
  p.target_row = t.target_row.data();
  p.target_logits = t.target.data();
  if (p.n_drawn > 0) {
    p.draft_row = t.draft_row.data();
    p.draft_logits = t.draft.data();
  }
  p.seen = t.seen.data();
  p.seen_begin = t.seen_begin.data();
  p.numbers = {&kSeed, t.sequence.data(), t.position.data(), p.numbers.stage};
  p.workspace = workspace.get();
  cpu_table().verify_trees(p, {0, p.n_seqs});
  return v;
}

/// What lies beyond the path and the token after it is not compared.
inline void forget_unused(const Trees& t, Verdicts& v) {
  for (size_t b = 0; b < t.sequence.size(); ++b) {
    const int begin = t.node_begin[b], end = t.node_begin[b + 1], n = v.n_accepted[b];
    const int n_tokens = v.bonus[b] == kInvalidToken ? n : n + 1;
    std::fill(v.path.begin() + begin + n, v.path.begin() + end, -7);
    std::fill(v.logprobs.begin() + begin + std::min(n_tokens, end - begin),
              v.logprobs.begin() + end, -7.0f);
  }
}

}  // namespace tandem::test
