#include "spec/draft/draft_texts.h"

#include <algorithm>

#include "spec/draft/pair.h"

namespace tandem::spec {

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

const std::vector<kv::Step>& DraftTexts::begin(std::span<const decode::DrawSeq> seqs,
                                               int at_least) {
  kv::Cache& cache = draft_.cache();
  std::vector<kv::SeqRows> rows;
  std::vector<std::vector<int>> parents(seqs.size()), level_ends(seqs.size());
  std::vector<kv::Tree> trees;
  unread_.clear();
  for (size_t b = 0; b < seqs.size(); ++b) {
    const int slot = slot_of(seqs[b]), length = static_cast<int>(seqs[b].tokens.size());
    if (length - cache.length(slot) < at_least)
      cache.uncommit(slot, std::max(0, length - at_least));
    const int chain = static_cast<int>(unread(seqs[b]).size());
    unread_.push_back(chain);
    for (int i = 0; i < chain; ++i) parents[b].push_back(i - 1);
    for (int node = 1; node < nodes_run_; ++node)
      parents[b].push_back(chain - 1 + tree_.parent[static_cast<size_t>(node)]);
    for (int level = 1; level < tree_.levels(); ++level)
      level_ends[b].push_back(chain - 1 + tree_.level_begin[static_cast<size_t>(level)]);
    rows.push_back({slot, chain - 1 + nodes_run_, false});
    trees.push_back({parents[b]});
  }
  const double before = cache.usage(0).bytes();
  steps_ = cache.begin_levels(rows, trees, level_ends);
  bytes_of_round_ =
      static_cast<double>(steps_.size()) * static_cast<double>(draft_.weight_bytes()) +
      cache.usage(0).bytes() - before;
  return steps_;
}

void DraftTexts::accept(std::span<const std::span<const int32_t>> paths, bool moved) {
  if (is_lone_root()) return;
  std::vector<int> kept;
  std::vector<std::vector<int>> rows;
  for (size_t b = 0; b < paths.size(); ++b) {
    std::vector<int>& path = rows.emplace_back();
    for (int i = 0; i < unread_[b]; ++i) path.push_back(i);
    for (const int node : paths[b])
      if (node < nodes_run_) path.push_back(unread_[b] - 1 + node);
    kept.push_back(static_cast<int>(path.size()));
  }
  if (moved) rows.clear();
  draft_.cache().commit(steps_.back(), kept, rows);
}

void DraftTexts::forget(int slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return;
  draft_.cache().release(it->second);
  slots_.erase(it);
}

}  // namespace tandem::spec
