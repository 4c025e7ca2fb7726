#include "speculate/draft/model_drafter.h"

#include <algorithm>

#include "ops/verification.h"
#include "speculate/draft/pair.h"

namespace tandem::speculate {

ModelDrafter::ModelDrafter(decode::Engine& draft, TokenTree tree, int vocab)
    : draft_(draft),
      tree_(std::move(tree)),
      vocab_(vocab > 0 ? vocab : draft.config().vocab_size),
      texts_(draft, tree_) {
  for (const int n : tree_.n_children) row_.push_back(n > 0 ? n_internal_++ : -1);
}

void ModelDrafter::run_level(std::span<const decode::DrawSeq> seqs, int level,
                             const kv::Step& step) {
  const int begin = tree_.level_begin[static_cast<size_t>(level)];
  const int end = tree_.level_begin[static_cast<size_t>(level) + 1];
  std::vector<int32_t> tokens;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const std::vector<int32_t>& nodes = proposals_[b].tokens;
    const std::span<const int32_t> text = texts_.unread(seqs[b]);
    if (level == 0)
      tokens.insert(tokens.end(), text.begin(), text.end());
    else
      tokens.insert(tokens.end(), nodes.begin() + begin, nodes.begin() + end);
  }
  draft_.model().forward(known_ids(tokens, draft_.config().vocab_size), step, draft_.cache());
}

void ModelDrafter::draw_level(std::span<const decode::DrawSeq> seqs, int level,
                              const kv::Step& step) {
  const int begin = tree_.level_begin[static_cast<size_t>(level)];
  const int end = tree_.level_begin[static_cast<size_t>(level) + 1];
  const auto vocab = static_cast<size_t>(vocab_);
  std::vector<int32_t> rows;
  std::vector<ops::ParentNode> parents;
  for (size_t b = 0; b < seqs.size(); ++b)
    for (int node = begin; node < end; ++node) {
      if (row_[static_cast<size_t>(node)] < 0) continue;
      // The nodes are a sequence's last rows: the root has text before it.
      rows.push_back(step.row_begin[b + 1] - end + node);
      parents.push_back({.round = {sampler_.seed, seqs[b].seq, seqs[b].position},
                         .node = node,
                         .n_children = tree_.n_children[static_cast<size_t>(node)]});
    }
  const Tensor logits = in_vocabulary(draft_.logits(rows), vocab_, level_logits_);
  const std::vector<int32_t> children =
      ops::draw_children(logits, sampler_.rule.temperature, parents);
  size_t r = 0, next = 0;
  for (size_t b = 0; b < seqs.size(); ++b)
    for (int node = begin; node < end; ++node) {
      const int32_t row = proposals_[b].draft_row[static_cast<size_t>(node)];
      if (row < 0) continue;
      std::copy_n(logits.as<float>() + r++ * vocab, vocab,
                  &logits_[static_cast<size_t>(row) * vocab]);
      const auto first = static_cast<size_t>(tree_.first_child[static_cast<size_t>(node)]);
      for (int c = 0; c < tree_.n_children[static_cast<size_t>(node)]; ++c)
        proposals_[b].tokens[first + static_cast<size_t>(c)] = children[next++];
    }
}

std::span<const Proposal> ModelDrafter::propose(std::span<const decode::DrawSeq> seqs) {
  const int64_t n_rows = static_cast<int64_t>(seqs.size()) * n_internal_;
  logits_.resize(static_cast<size_t>(n_rows) * static_cast<size_t>(vocab_));
  logits_view_ = {logits_.data(), DType::f32, {n_rows, vocab_}};
  proposals_.assign(seqs.size(), {.tree = &tree_, .tokens = {}, .draft_row = row_});
  for (size_t b = 0; b < seqs.size(); ++b) {
    Proposal& p = proposals_[b];
    p.tokens.assign(static_cast<size_t>(tree_.size()), -1);
    p.tokens[0] = seqs[b].tokens.back();
    for (int32_t& row : p.draft_row)
      if (row >= 0) row += static_cast<int32_t>(b) * n_internal_;
  }
  if (texts_.is_lone_root()) return proposals_;
  texts_.read(seqs);
  const std::vector<kv::Step>& steps = texts_.begin(seqs);
  for (int level = 0; level + 1 < tree_.levels(); ++level) {
    run_level(seqs, level, steps[static_cast<size_t>(level)]);
    draw_level(seqs, level, steps[static_cast<size_t>(level)]);
  }
  bytes_read_ += texts_.bytes_of_round();
  return proposals_;
}

}  // namespace tandem::speculate
