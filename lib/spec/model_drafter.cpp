#include "spec/model_drafter.h"

#include <algorithm>

#include "ops/verification.h"

namespace tandem::spec {
namespace {

/// What a draft's cache may lack of a text: the token drawn last, and an accepted leaf before it.
constexpr int kMaxUnread = 2;

}  // namespace

ModelDrafter::Needs ModelDrafter::needs(const TokenTree& tree, int batch) {
  const std::vector<int> widths = tree.widths();
  // Nodes of the deepest level are drawn but not run.
  const int run = tree.levels() > 1 ? tree.size() - widths.back() : tree.size();
  const int widest = tree.levels() > 1 ? *std::max_element(widths.begin(), widths.end() - 1) : 1;
  return {.rows = batch * (run - 1 + kMaxUnread), .logit_rows = batch * widest,
          .tokens = run - 1 + kMaxUnread};
}

ModelDrafter::ModelDrafter(decode::Engine& draft, TokenTree tree)
    : draft_(draft), tree_(std::move(tree)) {
  for (const int n : tree_.n_children) row_.push_back(n > 0 ? n_internal_++ : -1);
}

std::span<const int32_t> ModelDrafter::unread(const decode::DrawSeq& seq) const {
  return seq.tokens.subspan(static_cast<size_t>(draft_.cache().length(slot_of(seq))));
}

void ModelDrafter::read(std::span<const decode::DrawSeq> seqs) {
  if (tree_.levels() == 1) return;  // a lone root asks nothing of the draft
  std::vector<decode::SeqTokens> texts;
  for (const decode::DrawSeq& s : seqs) {
    if (!slots_.contains(s.slot)) slots_[s.slot] = draft_.cache().create();
    const std::span<const int32_t> lacking = unread(s);
    if (lacking.size() > size_t{kMaxUnread})
      texts.push_back({slot_of(s), lacking.first(lacking.size() - 1), true});
  }
  if (!texts.empty()) draft_.prefill(texts, {});
}

void ModelDrafter::begin_levels(std::span<const decode::DrawSeq> seqs) {
  const int nodes = tree_.level_begin[static_cast<size_t>(tree_.levels()) - 1];
  std::vector<kv::SeqRows> rows;
  std::vector<std::vector<int>> parents(seqs.size()), level_ends(seqs.size());
  std::vector<kv::Tree> trees;
  chains_.clear();
  for (size_t b = 0; b < seqs.size(); ++b) {
    const int chain = static_cast<int>(unread(seqs[b]).size());
    chains_.push_back(chain);
    for (int i = 0; i < chain; ++i) parents[b].push_back(i - 1);
    for (int node = 1; node < nodes; ++node)
      parents[b].push_back(chain - 1 + tree_.parent[static_cast<size_t>(node)]);
    for (int level = 1; level < tree_.levels(); ++level)
      level_ends[b].push_back(chain - 1 + tree_.level_begin[static_cast<size_t>(level)]);
    rows.push_back({slot_of(seqs[b]), chain - 1 + nodes, false});
    trees.push_back({parents[b]});
  }
  steps_ = draft_.cache().begin_levels(rows, trees, level_ends);
}

void ModelDrafter::run_level(std::span<const decode::DrawSeq> seqs, int level) {
  const int begin = tree_.level_begin[static_cast<size_t>(level)];
  const int end = tree_.level_begin[static_cast<size_t>(level) + 1];
  std::vector<int32_t> tokens;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const std::vector<int32_t>& nodes = proposals_[b].tokens;
    const std::span<const int32_t> text = unread(seqs[b]);
    if (level == 0)
      tokens.insert(tokens.end(), text.begin(), text.end());
    else
      tokens.insert(tokens.end(), nodes.begin() + begin, nodes.begin() + end);
  }
  const auto n_parents =
      std::count_if(row_.begin() + begin, row_.begin() + end, [](int32_t row) { return row >= 0; });
  draft_.model().prepare(static_cast<int64_t>(tokens.size()));
  draft_.model().prepare_logits(static_cast<int64_t>(seqs.size()) * n_parents);
  draft_.model().forward(tokens, steps_[static_cast<size_t>(level)], draft_.cache());
}

void ModelDrafter::draw_level(std::span<const decode::DrawSeq> seqs, int level) {
  const int begin = tree_.level_begin[static_cast<size_t>(level)];
  const int end = tree_.level_begin[static_cast<size_t>(level) + 1];
  const auto vocab = static_cast<size_t>(draft_.config().vocab_size);
  std::vector<int32_t> rows;
  std::vector<ops::ParentNode> parents;
  const kv::Step& step = steps_[static_cast<size_t>(level)];
  for (size_t b = 0; b < seqs.size(); ++b)
    for (int node = begin; node < end; ++node) {
      if (row_[static_cast<size_t>(node)] < 0) continue;
      // The nodes are a sequence's last rows: the root has text before it.
      rows.push_back(step.row_begin[b + 1] - end + node);
      parents.push_back({.round = {sampler_.seed, seqs[b].seq, seqs[b].position},
                         .node = node,
                         .n_children = tree_.n_children[static_cast<size_t>(node)]});
    }
  const Tensor logits = draft_.on_host(draft_.model().logits(rows));
  const std::vector<int32_t> children =
      ops::draw_children(logits, sampler_.rule.temperature, parents);
  size_t r = 0, next = 0;
  for (size_t b = 0; b < seqs.size(); ++b)
    for (int node = begin; node < end; ++node) {
      const int32_t row = proposals_[b].draft_row[static_cast<size_t>(node)];
      if (row < 0) continue;
      std::copy_n(logits.as<float>() + r++ * vocab, vocab, &logits_[static_cast<size_t>(row) * vocab]);
      const auto first = static_cast<size_t>(tree_.first_child[static_cast<size_t>(node)]);
      for (int c = 0; c < tree_.n_children[static_cast<size_t>(node)]; ++c)
        proposals_[b].tokens[first + static_cast<size_t>(c)] = children[next++];
    }
}

std::span<const Proposal> ModelDrafter::propose(std::span<const decode::DrawSeq> seqs) {
  read(seqs);
  const int64_t n_rows = static_cast<int64_t>(seqs.size()) * n_internal_;
  logits_.resize(static_cast<size_t>(n_rows) * static_cast<size_t>(draft_.config().vocab_size));
  logits_view_ = {logits_.data(), DType::f32, {n_rows, draft_.config().vocab_size}};
  proposals_.assign(seqs.size(), {.tree = &tree_, .tokens = {}, .draft_row = row_});
  for (size_t b = 0; b < seqs.size(); ++b) {
    Proposal& p = proposals_[b];
    p.tokens.assign(static_cast<size_t>(tree_.size()), -1);
    p.tokens[0] = seqs[b].tokens.back();
    for (int32_t& row : p.draft_row)
      if (row >= 0) row += static_cast<int32_t>(b) * n_internal_;
  }
  const int n_levels = tree_.levels() - 1;
  if (n_levels == 0) return proposals_;
  const double before = draft_.cache().usage(0).bytes();
  begin_levels(seqs);
  for (int level = 0; level < n_levels; ++level) {
    run_level(seqs, level);
    draw_level(seqs, level);
  }
  bytes_read_ += n_levels * static_cast<double>(draft_.weight_bytes()) +
                 draft_.cache().usage(0).bytes() - before;
  return proposals_;
}

void ModelDrafter::accept(std::span<const std::vector<int>> paths) {
  if (tree_.levels() == 1) return;  // nothing was run: the next text is read as it comes
  const int nodes_run = tree_.level_begin[static_cast<size_t>(tree_.levels()) - 1];
  std::vector<int> kept;
  std::vector<std::vector<int>> rows;
  for (size_t b = 0; b < paths.size(); ++b) {
    std::vector<int>& path = rows.emplace_back();
    for (int i = 0; i < chains_[b]; ++i) path.push_back(i);
    for (const int node : paths[b])
      if (node < nodes_run) path.push_back(chains_[b] - 1 + node);
    kept.push_back(static_cast<int>(path.size()));
  }
  draft_.cache().commit(steps_.back(), kept, rows);
}

void ModelDrafter::forget(int slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return;
  draft_.cache().release(it->second);
  slots_.erase(it);
}

}  // namespace tandem::spec
