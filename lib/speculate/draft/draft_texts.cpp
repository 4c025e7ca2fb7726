#include "speculate/draft/draft_texts.h"

#include <algorithm>

#include "speculate/draft/pair.h"

namespace tandem::speculate {

DraftTexts::DraftTexts(decode::Engine& draft, const TokenTree& tree)
    : draft_(draft),
      tree_(tree),
      nodes_run_(tree.level_begin[static_cast<size_t>(tree.levels()) - 1]) {}

DraftTexts::~DraftTexts() {
  if (owns_prefix_) draft_.cache().release(prefix_slot_);
}

void DraftTexts::share(std::span<const int32_t> prefix) {
  if (is_lone_root()) return;
  continue_from(draft_.cache().create());
  owns_prefix_ = true;
  const std::vector<int32_t> known = known_ids(prefix, draft_.config().vocab_size);
  const decode::SeqTokens text[] = {{prefix_slot_, known, false}};
  draft_.prefill(text, {});
}

void DraftTexts::continue_from(int slot) {
  if (owns_prefix_) draft_.cache().release(prefix_slot_);
  owns_prefix_ = false;
  prefix_slot_ = slot;
}

std::span<const int32_t> DraftTexts::unread(const decode::DrawSeq& seq) const {
  return seq.tokens.subspan(static_cast<size_t>(draft_.cache().length(slot_of(seq))));
}

void DraftTexts::read(std::span<const decode::DrawSeq> seqs) {
  if (is_lone_root()) return;
  std::vector<decode::SeqTokens> texts;
  std::vector<std::vector<int32_t>> known;
  known.reserve(seqs.size());
  kv::Cache& cache = draft_.cache();
  for (const decode::DrawSeq& s : seqs) {
    if (!slots_.contains(s.slot))
      slots_[s.slot] = prefix_slot_ >= 0 ? cache.fork(prefix_slot_, 0) : cache.create();
    const std::span<const int32_t> lacking = unread(s);
    if (lacking.size() <= size_t{kMaxUnread}) continue;
    known.push_back(known_ids(lacking.first(lacking.size() - 1), draft_.config().vocab_size));
    texts.push_back({slot_of(s), known.back(), true});
  }
  if (!texts.empty()) draft_.prefill(texts, {});
}

const std::vector<kv::Step>& DraftTexts::begin(std::span<const decode::DrawSeq> seqs, int at_least,
                                               Outbox* outbox) {
  kv::Cache& cache = draft_.cache();
  std::vector<kv::Step> earlier = std::exchange(steps_, {});  // gone, should this fail
  bool is_as_before = !earlier.empty() && unread_.size() == seqs.size();
  round_slots_.resize(seqs.size());
  unread_.resize(seqs.size());
  for (size_t b = 0; b < seqs.size(); ++b) {
    const int slot = slot_of(seqs[b]), length = static_cast<int>(seqs[b].tokens.size());
    if (length - cache.length(slot) < at_least)
      cache.uncommit(slot, std::max(0, length - at_least));
    const int chain = length - cache.length(slot);
    is_as_before = is_as_before && unread_[b] == chain;
    round_slots_[b] = slot;
    unread_[b] = chain;
  }
  const double before = cache.usage(0).bytes();
  if (is_as_before) {
    cache.begin_again(earlier, round_slots_, outbox);
    steps_ = std::move(earlier);
  } else {
    steps_ = lay_out(outbox);
  }
  bytes_of_round_ =
      static_cast<double>(steps_.size()) * static_cast<double>(draft_.weight_bytes()) +
      cache.usage(0).bytes() - before;
  return steps_;
}

std::vector<kv::Step> DraftTexts::lay_out(Outbox* outbox) {
  const size_t n = unread_.size();
  std::vector<kv::SeqRows> rows;
  std::vector<std::vector<int>> parents(n), level_ends(n);
  std::vector<kv::Tree> trees;
  for (size_t b = 0; b < n; ++b) {
    const int chain = unread_[b];
    for (int i = 0; i < chain; ++i) parents[b].push_back(i - 1);
    for (int node = 1; node < nodes_run_; ++node)
      parents[b].push_back(chain - 1 + tree_.parent[static_cast<size_t>(node)]);
    for (int level = 1; level < tree_.levels(); ++level)
      level_ends[b].push_back(chain - 1 + tree_.level_begin[static_cast<size_t>(level)]);
    rows.push_back({round_slots_[b], chain - 1 + nodes_run_, false});
    trees.push_back({parents[b]});
  }
  return draft_.cache().begin_levels({.rows = rows, .trees = trees, .outbox = outbox}, level_ends);
}

void DraftTexts::accept(std::span<const std::span<const int32_t>> paths, bool moved) {
  if (is_lone_root()) return;
  std::vector<std::vector<int>> rows;
  kept_.clear();
  for (size_t b = 0; b < paths.size(); ++b) {
    // Nodes of a path ascend: those that were run come first.
    const auto n_run = static_cast<size_t>(
        std::lower_bound(paths[b].begin(), paths[b].end(), nodes_run_) - paths[b].begin());
    kept_.push_back(unread_[b] + static_cast<int>(n_run));
    if (moved) continue;
    std::vector<int>& path = rows.emplace_back();
    for (int i = 0; i < unread_[b]; ++i) path.push_back(i);
    for (const int node : paths[b].first(n_run)) path.push_back(unread_[b] - 1 + node);
  }
  draft_.cache().commit(steps_.back(), kept_, rows);
}

void DraftTexts::forget(int slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return;
  draft_.cache().release(it->second);
  slots_.erase(it);
}

}  // namespace tandem::speculate
