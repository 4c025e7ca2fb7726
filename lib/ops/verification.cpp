#include "ops/verification.h"

#include <algorithm>

#include "base/check.h"
#include "ops/operation.h"
#include "ops/row_workspace.h"
#include "tensor/cuda.h"

namespace tandem::ops {
namespace {

/// Names of rounds as kernels read them: of one seed and stage.
struct Names {
  uint64_t seed = 0;
  uint32_t stage = 0;
  std::vector<int32_t> sequence, position;

  void add(const RoundName& r) {
    const auto own_seed = static_cast<uint64_t>(r.seed);
    const auto own_stage = static_cast<uint32_t>(r.stage);
    if (sequence.empty()) seed = own_seed, stage = own_stage;
    TANDEM_CHECK(seed == own_seed && stage == own_stage && stage < kMaxStages,
                 "a batch mixes seeds {} and {}, or stages {} and {}", seed, own_seed, stage,
                 own_stage);
    sequence.push_back(r.sequence);
    position.push_back(r.position);
  }
  RoundNumbers numbers() const { return {&seed, sequence.data(), position.data(), stage}; }
};

void append(std::vector<int32_t>& to, std::span<const int32_t> from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Tokens to penalise, row after row.
struct Histories {
  std::vector<int32_t> tokens, begin{0};

  Histories(std::span<const std::span<const int32_t>> seen, bool is_needed, size_t n_rows) {
    for (size_t r = 0; r < n_rows; ++r) {
      if (is_needed) append(tokens, seen[r]);
      begin.push_back(static_cast<int32_t>(tokens.size()));
    }
  }
};

void check_rule(const VerifyRule& rule) {
  TANDEM_CHECK(
      !weighs_draws(rule.accept_by) || rule.draft.temperature > 0 || rule.target.temperature == 0,
      "a draft at temperature 0 draws no children: verify by match");
}

/// Trees of all sequences one after the other, as the kernel reads them.
struct TreeArrays {
  std::vector<int32_t> node_begin{0}, tokens, first_child, n_children, target_row, draft_row, seen,
      seen_begin{0};
  Names names;

  void add(const DraftTree& t) {
    append(tokens, t.tokens);
    append(first_child, t.first_child);
    append(n_children, t.n_children);
    append(target_row, t.target_row);
    append(draft_row, t.draft_row);
    append(seen, t.seen);
    node_begin.push_back(static_cast<int32_t>(tokens.size()));
    seen_begin.push_back(static_cast<int32_t>(seen.size()));
    names.add(t.round);
  }
};

void check_tree(const DraftTree& t, const VerifyRule& rule, int64_t target_rows, int64_t draft_rows,
                int vocab) {
  const size_t n = t.tokens.size();
  TANDEM_CHECK(n > 0, "the tree has no root");
  TANDEM_CHECK(t.first_child.size() == n && t.n_children.size() == n && t.target_row.size() == n,
               "tree arrays have {}, {} and {} entries for {} nodes", t.first_child.size(),
               t.n_children.size(), t.target_row.size(), n);
  const bool by_residual = weighs_draws(rule.accept_by);
  TANDEM_CHECK(t.draft_row.size() == (by_residual ? n : 0), "{} draft rows for {} nodes",
               t.draft_row.size(), n);
  for (size_t i = 0; i < n; ++i) {
    const int b = t.n_children[i];
    TANDEM_CHECK(b >= 0 && b <= vocab, "node {} has {} children for a vocabulary of {}", i, b,
                 vocab);
    TANDEM_CHECK(b == 0 || (t.first_child[i] > static_cast<int>(i) &&
                            t.first_child[i] + b <= static_cast<int>(n)),
                 "children {} to {} of node {} are out of range for {} nodes", t.first_child[i],
                 t.first_child[i] + b - 1, i, n);
    TANDEM_CHECK(i == 0 || (t.tokens[i] >= 0 && t.tokens[i] < vocab),
                 "token {} is outside the vocabulary of {}", t.tokens[i], vocab);
    TANDEM_CHECK(t.target_row[i] >= 0 && t.target_row[i] < target_rows,
                 "target row {} is out of range for {} rows", t.target_row[i], target_rows);
    TANDEM_CHECK(!by_residual || b == 0 || (t.draft_row[i] >= 0 && t.draft_row[i] < draft_rows),
                 "draft row {} is out of range for {} rows", t.draft_row[i], draft_rows);
  }
}

}  // namespace

std::vector<int32_t> draw_children(const Tensor& logits, const SampleRule& rule,
                                   std::span<const ParentNode> parents,
                                   std::span<const std::span<const int32_t>> seen) {
  const auto n = static_cast<size_t>(logits.rows());
  const int vocab = vocab_of(logits);
  TANDEM_CHECK(parents.size() == n, "{} parents for {} rows", parents.size(), n);
  TANDEM_CHECK(!rule.needs_seen() || seen.size() == n, "unexpected number of histories: {}",
               seen.size());
  const Histories histories(seen, rule.needs_seen(), n);
  Names names;
  std::vector<ParentRow> rows;
  int n_tokens = 0;
  for (const ParentNode& p : parents) {
    TANDEM_CHECK(p.n_children >= 0 && p.n_children <= vocab,
                 "{} children do not fit a vocabulary of {}", p.n_children, vocab);
    TANDEM_CHECK(p.node >= 0 && p.node < 1 << 16, "node {} is out of range", p.node);
    names.add(p.round);
    rows.push_back({.seq = static_cast<int32_t>(rows.size()),
                    .node = p.node,
                    .first_child = n_tokens,
                    .n_children = p.n_children});
    n_tokens += p.n_children;
  }
  std::vector<int32_t> tokens(static_cast<size_t>(n_tokens));
  draw_children({.tokens = tokens.data(),
                 .logits = logits.as<float>(),
                 .parents = rows.data(),
                 .numbers = names.numbers(),
                 .n_rows = static_cast<int>(n),
                 .vocab = vocab,
                 .rule = rule.kept(),
                 .seen = histories.tokens.data(),
                 .seen_begin = histories.begin.data(),
                 .workspace = nullptr},
                Stream{});
  check_valid(tokens);
  return tokens;
}

std::vector<Verified> verify_trees(const Tensor& target_logits, const Tensor& draft_logits,
                                   const VerifyRule& rule, std::span<const DraftTree> trees) {
  const bool by_residual = weighs_draws(rule.accept_by);
  const int vocab = vocab_of(target_logits);
  check_rule(rule);
  TANDEM_CHECK(!by_residual || draft_logits.empty() || vocab_of(draft_logits) == vocab,
               "vocabularies of target and draft differ: {} and {}", vocab, vocab_of(draft_logits));
  TreeArrays in;
  for (const DraftTree& t : trees) {
    check_tree(t, rule, target_logits.rows(), draft_logits.rows(), vocab);
    in.add(t);
  }
  const size_t n_nodes = in.tokens.size(), n_seqs = trees.size();
  std::vector<int32_t> path(n_nodes), n_accepted(n_seqs), bonus(n_seqs), n_rounded(n_seqs);
  std::vector<float> logprobs(rule.wants_logprobs ? n_nodes : 0);
  verify_trees({.path = path.data(),
                .n_accepted = n_accepted.data(),
                .bonus = bonus.data(),
                .logprobs = rule.wants_logprobs ? logprobs.data() : nullptr,
                .n_rounded = n_rounded.data(),
                .node_begin = in.node_begin.data(),
                .tokens = in.tokens.data(),
                .first_child = in.first_child.data(),
                .n_children = in.n_children.data(),
                .target_row = in.target_row.data(),
                .draft_row = by_residual ? in.draft_row.data() : nullptr,
                .target_logits = target_logits.as<float>(),
                .draft_logits = by_residual ? draft_logits.as<float>() : nullptr,
                .seen = in.seen.data(),
                .seen_begin = in.seen_begin.data(),
                .numbers = in.names.numbers(),
                .n_seqs = static_cast<int>(n_seqs),
                .vocab = vocab,
                .target = rule.target.kept(),
                .draft = rule.draft.kept(),
                .accept_by = rule.accept_by,
                .floor = rule.floor,
                .workspace = nullptr},
               Stream{});
  check_valid(bonus);
  std::vector<Verified> verified(n_seqs);
  for (size_t b = 0; b < n_seqs; ++b) {
    const auto begin = path.begin() + in.node_begin[b];
    verified[b] = {.path = {begin, begin + n_accepted[b]},
                   .bonus = bonus[b],
                   .logprobs = {},
                   .n_rounded = n_rounded[b]};
    const auto first = logprobs.begin() + (rule.wants_logprobs ? in.node_begin[b] : 0);
    if (rule.wants_logprobs) verified[b].logprobs.assign(first, first + n_accepted[b] + 1);
  }
  return verified;
}

std::vector<double> accept_chances(const Tensor& target_logits, const Tensor& draft_logits,
                                   const VerifyRule& rule, std::span<const int32_t> children,
                                   int n_children, std::span<const std::span<const int32_t>> seen) {
  const auto n = static_cast<size_t>(target_logits.rows());
  const auto width = static_cast<size_t>(n_children);
  const bool by_residual = weighs_draws(rule.accept_by);
  const int vocab = vocab_of(target_logits);
  check_rule(rule);
  TANDEM_CHECK(n_children <= vocab, "{} children do not fit a vocabulary of {}", n_children, vocab);
  TANDEM_CHECK(children.size() == n * width, "{} children for {} rows", children.size(), n);
  TANDEM_CHECK(!by_residual ||
                   (draft_logits.rows() == target_logits.rows() && vocab_of(draft_logits) == vocab),
               "draft logits [{}, {}] do not fit the target's", draft_logits.rows(),
               vocab_of(draft_logits));
  const bool needs_seen = rule.target.needs_seen() || rule.draft.needs_seen();
  TANDEM_CHECK(!needs_seen || seen.size() == n, "unexpected number of histories: {}", seen.size());
  const Histories histories(seen, needs_seen, n);
  std::vector<int32_t> child_begin{0};
  for (size_t r = 0; r < n; ++r) child_begin.push_back(child_begin.back() + n_children);
  std::vector<double> chances(n * width);
  const AcceptChancesParams p{.chances = chances.data(),
                              .child_begin = child_begin.data(),
                              .children = children.data(),
                              .target_logits = target_logits.as<float>(),
                              .draft_logits = by_residual ? draft_logits.as<float>() : nullptr,
                              .seen = histories.tokens.data(),
                              .seen_begin = histories.begin.data(),
                              .n_rows = static_cast<int>(n),
                              .vocab = vocab,
                              .target = rule.target.kept(),
                              .draft = rule.draft.kept(),
                              .accept_by = rule.accept_by,
                              .workspace = nullptr};
  run_with_workspace(cpu_table().accept_chances, p, p.n_rows, verify_workspace_bytes(vocab, 0));
  for (size_t r = 0; r < n && width > 0; ++r)
    if (chances[r * width] != chances[r * width]) check_valid(std::vector{kInvalidToken});
  return chances;
}

void draw_children(const DrawChildrenParams& p, Stream stream) {
  if (stream.handle == nullptr)
    return run_with_workspace(cpu_table().draw_children, p, p.n_rows,
                              draw_children_workspace_bytes(p.vocab));
  launch(TANDEM_KERNEL(draw_children), p, stream);
}

void grow_beams(const GrowBeamsParams& p, Stream stream) {
  TANDEM_CHECK(p.width >= 1 && p.width <= kMaxBeams && p.width <= p.vocab,
               "{} beams exceed the limit of {} or the vocabulary of {}", p.width, kMaxBeams,
               p.vocab);
  TANDEM_OPERATION(grow_beams)
      .run(p, p.n_seqs, int64_t{p.width} * p.vocab * int64_t{sizeof(float)}, stream);
}

void verify_trees(const VerifyTreesParams& p, Stream stream) {
  check_rule({.target = {.temperature = p.target.temperature},
              .draft = {.temperature = p.draft.temperature},
              .accept_by = p.accept_by});
  if (stream.handle == nullptr)
    return run_with_workspace(cpu_table().verify_trees, p, p.n_seqs,
                              verify_workspace_bytes(p.vocab, most_nodes(p.node_begin, p.n_seqs)));
  launch(TANDEM_KERNEL(verify_trees), p, stream);
}

void append_round(const AppendRoundParams& p, Stream stream) {
  TANDEM_OPERATION(append_round)
      .run(p, p.n_seqs, int64_t{p.max_kept} * p.vocab * int64_t{sizeof(float)}, stream);
}

void propose_lookup(const ProposeLookupParams& p, Stream stream) {
  constexpr int64_t kTextBytes = 65536;  // of a text that is long enough for rounds within
  TANDEM_OPERATION(propose_lookup).run(p, p.n_seqs, kTextBytes, stream);
}

}  // namespace tandem::ops
