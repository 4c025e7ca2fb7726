// Children of tree nodes and verification, at one node: what a level of drafting and a step of the
// walk cost.
#include <algorithm>
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

/// A root and its children, all of which are rejected: they lead in the draft's row alone.
PreparedCase prepare_verify(int vocab, int n_children, const KeepRule& target) {
  const int n = n_children + 1;
  const OwnedTensor target_logits = make_rows(1, vocab, 0), draft_logits = make_rows(1, vocab, 1),
                    workspace = bytes_of(verify_workspace_bytes(vocab, n));
  Ids tokens(static_cast<size_t>(n)), first(tokens), children(tokens), rows(tokens);
  for (int i = 1; i < n; ++i)
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(leader(1, i - 1, vocab));
  first[0] = 1;
  children[0] = n_children;
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
        .tokens = tokens.data(),
        .first_child = first.data(),
        .n_children = children.data(),
        .target_row = rows.data(),
        .draft_row = rows.data(),
        .target_logits = target_logits.as<float>(),
        .draft_logits = draft_logits.as<float>(),
        .seen = nullptr,
        .seen_begin = nullptr,
        .numbers = {&kSeed, &name, &name},
        .n_seqs = 1,
        .vocab = vocab,
        .target = target,
        .draft = {.repetition_penalty = 1, .temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0},
        .accept_by = AcceptBy::sequoia,
        .workspace = workspace.raw()},
       {0, 1});
  };
  return {.run = [=] { verify(cpu_table().verify_trees, *got); },
          .mismatch = [=]() -> std::string {
            Result want;
            verify(verify_trees_ref, want);
            if (got->n_accepted > 0) return "a child was accepted";
            if (got->n_accepted == want.n_accepted && got->bonus == want.bonus) return {};
            return fmt::format("{} accepted, then token {}; the reference gives {}, {}",
                               got->n_accepted, got->bonus, want.n_accepted, want.bonus);
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
                                return prepare_verify(vocab, n_children, rule);
                              }));
  return cases;
}

}  // namespace tandem::bench
