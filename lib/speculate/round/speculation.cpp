#include "speculate/round/speculation.h"

#include <numeric>

#include "base/clock.h"
#include "ops/verification.h"
#include "speculate/round/simulated_acceptance.h"

namespace tandem::speculate {

using decode::DrawSeq;

void Speculation::step(std::span<const DrawSeq> seqs) {
  Stopwatch watch;
  const std::span<const Proposal> proposals = drafter_->propose(seqs);
  stats_.draft_s += watch.seconds();
  watch.restart();

  kv::Cache& cache = target_.cache();
  const double before = cache.usage(0).bytes();
  std::vector<kv::SeqRows> rows;
  std::vector<kv::Tree> trees;
  std::vector<int32_t> tokens, logit_rows;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const TokenTree& tree = *proposals[b].tree;
    rows.push_back({seqs[b].slot, tree.size(), false});
    trees.push_back({tree.parent});
    tokens.insert(tokens.end(), proposals[b].tokens.begin(), proposals[b].tokens.end());
  }
  const kv::Step step = cache.begin({.rows = rows, .trees = trees});
  target_.model().forward(tokens, step, cache);
  for (int r = 0; r < step.n_rows; ++r) logit_rows.push_back(r);
  const Tensor logits = target_.logits(logit_rows);
  bytes_read_ += static_cast<double>(target_.weight_bytes()) + cache.usage(0).bytes() - before;
  stats_.target_s += watch.seconds();
  watch.restart();

  std::vector<ops::DraftTree> drafts;
  std::vector<std::vector<int32_t>> target_rows;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const Proposal& p = proposals[b];
    std::vector<int32_t>& of_nodes = target_rows.emplace_back(p.tokens.size());
    std::iota(of_nodes.begin(), of_nodes.end(), step.row_begin[b]);
    drafts.push_back({.round = {sampler_.seed, seqs[b].seq, seqs[b].position},
                      .tokens = p.tokens,
                      .first_child = p.tree->first_child,
                      .n_children = p.tree->n_children,
                      .target_row = of_nodes,
                      .draft_row = p.draft_row,
                      .seen = seqs[b].tokens});
  }
  const ops::VerifyRule rule = rule_of(sampler_.rule, drafter_->accept_by());
  std::vector<ops::Verified> verdicts =
      ops::verify_trees(logits, drafter_->draft_logits(), rule, drafts);
  for (size_t b = 0; options_.simulate && b < seqs.size(); ++b) {
    const std::vector<int> path =
        simulated_path(*proposals[b].tree, *options_.simulate, drafts[b].round);
    verdicts[b].path.assign(path.begin(), path.end());
    verdicts[b].logprobs.assign(path.size() + 1, 0.0f);
  }

  std::vector<std::span<const int32_t>> paths;
  std::vector<std::vector<int>> kept_rows;
  std::vector<int> kept;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const Proposal& p = proposals[b];
    const ops::Verified& verdict = verdicts[b];
    auto& drawn = ready_.emplace_back();
    for (size_t i = 0; i <= verdict.path.size(); ++i) {
      const bool is_bonus = i == verdict.path.size();
      drawn.push_back(
          {.id = is_bonus ? verdict.bonus : p.tokens[static_cast<size_t>(verdict.path[i])],
           .logprob = verdict.logprobs[i],
           .top = {}});
    }
    paths.emplace_back(verdict.path);
    std::vector<int>& rows_kept = kept_rows.emplace_back(1, 0);  // the root's keys stay in any case
    rows_kept.insert(rows_kept.end(), verdict.path.begin(), verdict.path.end());
    kept.push_back(static_cast<int>(rows_kept.size()));
    count({seqs[b].seq, p.tree->size() - 1, static_cast<int>(verdict.path.size())});
  }
  cache.commit(step, kept, kept_rows);
  drafter_->accept(paths);
  stats_.verify_s += watch.seconds();
}

}  // namespace tandem::speculate
