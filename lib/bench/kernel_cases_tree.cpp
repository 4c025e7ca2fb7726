// Children of tree nodes and verification, at one node: what a level of drafting and a step of the
// walk cost.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "bench/kernel_data.h"
#include "kernels/cpu_table.h"

namespace tandem::bench {
namespace {

using Ids = std::vector<int32_t>;

const uint64_t kSeed = 1;

/// The i-th most likely token of a row, of rows that lead from `first` on.
int64_t leader(int first, int i, int vocab) { return (first + int64_t{i} * 7919) % vocab; }

/// Rows like a language model's (kernel_cases_sample.cpp).
OwnedTensor make_rows(int n_rows, int vocab, int first_leader) {
  OwnedTensor logits = OwnedTensor::random(DType::f32, {n_rows, vocab}, 0, 2.5f);
  constexpr int kLeaders = 64;
  for (int64_t r = 0; r < n_rows; ++r)
    for (int i = 0; i < kLeaders; ++i)
      logits.as<float>()[r * vocab + leader(first_leader, i, vocab)] +=
          16.0f - 0.15f * static_cast<float>(i);
  return logits;
}

OwnedTensor bytes_of(size_t n) { return {DType::u8, {static_cast<int64_t>(n)}}; }

PreparedCase prepare_draw(int n_rows, int vocab, int n_children, const KeepRule& rule) {
  const OwnedTensor logits = make_rows(n_rows, vocab, 0),
                    workspace = bytes_of(draw_children_workspace_bytes(vocab));
  Ids names;
  std::vector<ParentRow> parents;
  for (int r = 0; r < n_rows; ++r) {
    names.push_back(r);
    parents.push_back({r, r, r * n_children, n_children});
  }
  const auto tokens = std::make_shared<Ids>(static_cast<size_t>(n_rows * n_children));
  const auto draw = [=](DrawChildrenFn* fn, Ids& to) {
    fn({.tokens = to.data(),
        .logits = logits.as<float>(),
        .parents = parents.data(),
        .numbers = {&kSeed, names.data(), names.data()},
        .n_rows = n_rows,
        .vocab = vocab,
        .rule = rule,
        .workspace = workspace.raw()},
       {0, n_rows});
  };
  return {.run = [=] { draw(cpu_table().draw_children, *tokens); },
          .mismatch = [=]() -> std::string {
            Ids want(tokens->size());
            draw(draw_children_ref, want);
            return *tokens == want ? "" : "other children than the reference";
          }};
}

/// A tree and its rows: row i of either tensor is that of node i.
struct TreeRows {
  OwnedTensor target_logits, draft_logits;
  Ids tokens, first_child, n_children, row;
  AcceptBy accept_by;

  TreeRows(OwnedTensor target, OwnedTensor draft, size_t n_nodes, AcceptBy rule)
      : target_logits(std::move(target)),
        draft_logits(std::move(draft)),
        tokens(n_nodes),
        first_child(n_nodes),
        n_children(n_nodes),
        row(n_nodes),
        accept_by(rule) {
    std::iota(row.begin(), row.end(), 0);
  }
  int n_nodes() const { return static_cast<int>(tokens.size()); }
};

/// A root and its children, all of which are rejected: they lead in the draft's row alone.
TreeRows make_star(int vocab, int n_children) {
  TreeRows t(make_rows(1, vocab, 0), make_rows(1, vocab, 1), static_cast<size_t>(n_children) + 1,
             AcceptBy::sequoia);
  for (int i = 1; i <= n_children; ++i)
    t.tokens[static_cast<size_t>(i)] = static_cast<int32_t>(leader(1, i - 1, vocab));
  t.first_child[0] = 1;
  t.n_children[0] = n_children;
  return t;
}

/// A chain drawn from a draft that agrees with the target by and large.
TreeRows make_chain(int vocab, int length, const KeepRule& draft, AcceptBy accept_by) {
  TreeRows t(make_rows(length + 1, vocab, 0), make_rows(length + 1, vocab, 0),
             static_cast<size_t>(length) + 1, accept_by);
  const OwnedTensor noise = OwnedTensor::random(DType::f32, {length + 1, vocab}, 1, 0.5f),
                    workspace = bytes_of(draw_children_workspace_bytes(vocab));
  for (int64_t i = 0; i < int64_t{length + 1} * vocab; ++i)
    t.draft_logits.as<float>()[i] += noise.as<float>()[i];
  std::vector<ParentRow> parents;
  for (int i = 0; i < length; ++i) {
    parents.push_back({0, i, i + 1, 1});
    t.first_child[static_cast<size_t>(i)] = i + 1;
    t.n_children[static_cast<size_t>(i)] = 1;
  }
  const int32_t name = 1;
  draw_children_ref({.tokens = t.tokens.data(),
                     .logits = t.draft_logits.as<float>(),
                     .parents = parents.data(),
                     .numbers = {&kSeed, &name, &name},
                     .n_rows = length,
                     .vocab = vocab,
                     .rule = draft,
                     .workspace = workspace.raw()},
                    {0, length});
  return t;
}

PreparedCase prepare_verify(int vocab, const TreeRows& tree, const KeepRule& target,
                            const KeepRule& draft) {
  const int n = tree.n_nodes();
  const OwnedTensor workspace = bytes_of(verify_workspace_bytes(vocab, n));
  struct Result {
    int32_t n_accepted = -1, bonus = -2, n_rounded = 0;
    Ids path;
    std::vector<float> logprobs;
  };
  const auto got = std::make_shared<Result>();
  const auto verify = [=](VerifyTreesFn* fn, Result& r) {
    r.path.resize(static_cast<size_t>(n));
    r.logprobs.resize(static_cast<size_t>(n));
    const int32_t node_begin[2] = {0, n}, name = 1;
    fn({.path = r.path.data(),
        .n_accepted = &r.n_accepted,
        .bonus = &r.bonus,
        .logprobs = r.logprobs.data(),
        .n_rounded = &r.n_rounded,
        .node_begin = node_begin,
        .tokens = tree.tokens.data(),
        .first_child = tree.first_child.data(),
        .n_children = tree.n_children.data(),
        .target_row = tree.row.data(),
        .draft_row = tree.row.data(),
        .target_logits = tree.target_logits.as<float>(),
        .draft_logits = tree.draft_logits.as<float>(),
        .seen = nullptr,
        .seen_begin = nullptr,
        .numbers = {&kSeed, &name, &name},
        .n_seqs = 1,
        .vocab = vocab,
        .target = target,
        .draft = draft,
        .accept_by = tree.accept_by,
        .workspace = workspace.raw()},
       {0, 1});
  };
  return {
      .run = [=] { verify(cpu_table().verify_trees, *got); },
      .mismatch = [=]() -> std::string {
        Result want;
        verify(verify_trees_ref, want);
        if (got->n_accepted != want.n_accepted || got->bonus != want.bonus)
          return fmt::format("{} accepted, then token {}; the reference gives {}, {}",
                             got->n_accepted, got->bonus, want.n_accepted, want.bonus);
        if (!std::equal(want.path.begin(), want.path.begin() + want.n_accepted, got->path.begin()))
          return "other nodes than the reference";
        for (size_t i = 0; i <= static_cast<size_t>(want.n_accepted); ++i)
          if (!(std::abs(got->logprobs[i] - want.logprobs[i]) <= 2e-6 + 0x1p-16))
            return fmt::format("log-probability {} is {}, the reference gives {}", i,
                               got->logprobs[i], want.logprobs[i]);
        return {};
      }};
}

KernelCase make_case(std::string name, int n_rows, int vocab, int rows_read, size_t workspace,
                     std::function<PreparedCase()> prepare) {
  return {
      .family = "tree",
      .name = std::move(name),
      .shape = fmt::format("{} x {}", n_rows, vocab),
      .dtype = DType::f32,
      .work = {.bytes = 4.0 * rows_read * vocab},
      .memory_bytes = workspace + 4 * static_cast<size_t>(rows_read) * static_cast<size_t>(vocab),
      .prepare = std::move(prepare)};
}

}  // namespace

KernelCases tree_cases(const KernelShapes& s) {
  const int vocab = s.vocab, n_children = std::min(8, vocab);
  KernelCases cases;
  const KeepRule all{.repetition_penalty = 1, .temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
  KeepRule best = all, top_p = all;
  best.temperature = 0;
  top_p.top_p = 0.9;
  for (const int rows : {1, 16})
    for (const auto& [name, rule] : {std::pair{"temperature 0", best},
                                     {"temperature 1", all},
                                     {"temperature 1, top-p 0.9", top_p}})
      cases.push_back(make_case(fmt::format("draw_children {}, {}", n_children, name), rows, vocab,
                                rows, draw_children_workspace_bytes(vocab), [=, rule = rule] {
                                  return prepare_draw(rows, vocab, n_children, rule);
                                }));
  for (const auto& [name, rule] : {std::pair{"all", all}, std::pair{"top-p 0.9", top_p}})
    cases.push_back(make_case(fmt::format("verify {} children, {}", n_children, name), 2, vocab, 2,
                              verify_workspace_bytes(vocab, n_children + 1), [=, rule = rule] {
                                return prepare_verify(vocab, make_star(vocab, n_children), rule,
                                                      all);
                              }));
  constexpr int kLength = 8, kRows = 2 * kLength + 1;
  for (const auto& [name, accept_by] :
       {std::pair{"sequoia", AcceptBy::sequoia}, std::pair{"block", AcceptBy::block}})
    cases.push_back(make_case(
        fmt::format("verify a chain of {}, {}", kLength, name), kRows, vocab, kRows,
        verify_workspace_bytes(vocab, kLength + 1), [=, accept_by = accept_by] {
          return prepare_verify(vocab, make_chain(vocab, kLength, all, accept_by), all, all);
        }));
  return cases;
}

}  // namespace tandem::bench
