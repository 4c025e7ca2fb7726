#include "spec/model_drafter.h"

#include <algorithm>

#include "ops/verification.h"
#include "spec/pair.h"

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

ModelDrafter::ModelDrafter(decode::Engine& draft, TokenTree tree, int vocab)
    : draft_(draft),
      tree_(std::move(tree)),
      vocab_(vocab > 0 ? vocab : draft.config().vocab_size) {
  for (const int n : tree_.n_children) row_.push_back(n > 0 ? n_internal_++ : -1);
}

ModelDrafter::~ModelDrafter() {
  if (owns_prefix_) draft_.cache().release(prefix_slot_);
}

void ModelDrafter::share(std::span<const int32_t> prefix) {
  if (tree_.levels() == 1) return;
  continue_from(draft_.cache().create());
  owns_prefix_ = true;
  const std::vector<int32_t> known = known_ids(prefix, draft_.config().vocab_size);
  const decode::SeqTokens text[] = {{prefix_slot_, known, false}};
  draft_.prefill(text, {});
}

void ModelDrafter::continue_from(int slot) {
  if (owns_prefix_) draft_.cache().release(prefix_slot_);
  owns_prefix_ = false;
  prefix_slot_ = slot;
}

std::span<const int32_t> ModelDrafter::unread(const decode::DrawSeq& seq) const {
  return seq.tokens.subspan(static_cast<size_t>(draft_.cache().length(slot_of(seq))));
}

void ModelDrafter::read(std::span<const decode::DrawSeq> seqs) {
  if (tree_.levels() == 1) return;  // a lone root asks nothing of the draft
  std::vector<decode::SeqTokens> texts;
  std::vector<std::vector<int32_t>> known;
  known.reserve(seqs.size());
  for (const decode::DrawSeq& s : seqs) {
    if (!slots_.contains(s.slot))
      slots_[s.slot] =
          prefix_slot_ >= 0 ? draft_.cache().fork(prefix_slot_, 0) : draft_.cache().create();
    const std::span<const int32_t> lacking = unread(s);
    if (lacking.size() <= size_t{kMaxUnread}) continue;
    known.push_back(known_ids(lacking.first(lacking.size() - 1), draft_.config().vocab_size));
    texts.push_back({slot_of(s), known.back(), true});
  }
  if (!texts.empty()) draft_.prefill(texts, {});
}

void ModelDrafter::run_level(std::span<const decode::DrawSeq> seqs, int level) {
  const int nodes = tree_.level_begin[static_cast<size_t>(level) + 1];
  std::vector<kv::SeqRows> rows;
  std::vector<std::vector<int>> parents(seqs.size());
  std::vector<kv::Tree> trees;
  std::vector<int32_t> tokens;
  chains_.clear();
  for (size_t b = 0; b < seqs.size(); ++b) {
    const std::span<const int32_t> text = unread(seqs[b]);
    const int chain = static_cast<int>(text.size());
    chains_.push_back(chain);
    tokens.insert(tokens.end(), text.begin(), text.end());
    for (int i = 0; i < chain; ++i) parents[b].push_back(i - 1);
    for (int node = 1; node < nodes; ++node) {
      parents[b].push_back(chain - 1 + tree_.parent[static_cast<size_t>(node)]);
      tokens.push_back(proposals_[b].tokens[static_cast<size_t>(node)]);
    }
    rows.push_back({slot_of(seqs[b]), chain - 1 + nodes, false});
    trees.push_back({parents[b]});
  }
  kv::Cache& cache = draft_.cache();
  const auto n_parents = std::count_if(
      row_.begin() + tree_.level_begin[static_cast<size_t>(level)], row_.begin() + nodes,
      [](int32_t row) { return row >= 0; });
  draft_.model().prepare(static_cast<int64_t>(tokens.size()));
  draft_.model().prepare_logits(static_cast<int64_t>(seqs.size()) * n_parents);
  const double before = cache.usage(0).bytes();
  step_ = cache.begin(kv::Phase::extend, rows, trees);
  draft_.model().forward(known_ids(tokens, draft_.config().vocab_size), step_, cache);
  levels_run_ = level + 1;
  bytes_read_ += static_cast<double>(draft_.weight_bytes()) + cache.usage(0).bytes() - before;
}

void ModelDrafter::draw_level(std::span<const decode::DrawSeq> seqs, int level) {
  const int begin = tree_.level_begin[static_cast<size_t>(level)];
  const int end = tree_.level_begin[static_cast<size_t>(level) + 1];
  const auto vocab = static_cast<size_t>(vocab_);
  std::vector<int32_t> rows;
  std::vector<ops::ParentNode> parents;
  for (size_t b = 0; b < seqs.size(); ++b)
    for (int node = begin; node < end; ++node) {
      if (row_[static_cast<size_t>(node)] < 0) continue;
      rows.push_back(step_.row_begin[b] + chains_[b] - 1 + node);
      parents.push_back({.round = {sampler_.seed, seqs[b].seq, seqs[b].position},
                         .node = node,
                         .n_children = tree_.n_children[static_cast<size_t>(node)]});
    }
  const Tensor logits =
      in_vocabulary(draft_.on_host(draft_.model().logits(rows)), vocab_, level_logits_);
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
  for (int level = 0; level + 1 < tree_.levels(); ++level) {
    run_level(seqs, level);
    draw_level(seqs, level);
  }
  return proposals_;
}

void ModelDrafter::accept(std::span<const std::vector<int>> paths) {
  if (tree_.levels() == 1) return;  // nothing was run: the next text is read as it comes
  const int nodes_run = tree_.level_begin[static_cast<size_t>(levels_run_)];
  std::vector<int> kept;
  std::vector<std::vector<int>> rows;
  for (size_t b = 0; b < paths.size(); ++b) {
    std::vector<int>& path = rows.emplace_back();
    for (int i = 0; i < chains_[b]; ++i) path.push_back(i);
    for (const int node : paths[b])
      if (node < nodes_run) path.push_back(chains_[b] - 1 + node);
    kept.push_back(static_cast<int>(path.size()));
  }
  draft_.cache().commit(step_, kept, rows);
}

void ModelDrafter::forget(int slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return;
  draft_.cache().release(it->second);
  slots_.erase(it);
}

}  // namespace tandem::spec
