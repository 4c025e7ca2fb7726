#include "speculate/draft/draft_sequences.h"

#include <algorithm>

#include "base/check.h"
#include "speculate/draft/pair.h"

namespace tandem::speculate {

DraftSequences::DraftSequences(Reader draft, Reader target, bool is_asked)
    : draft_(draft), is_asked_(is_asked), is_shared_(draft.engine == target.engine) {}

DraftSequences::~DraftSequences() {
  if (owns_prefix_) cache().release(prefix_slot_);
}

void DraftSequences::share(std::span<const int32_t> prefix) {
  if (!is_asked_ || is_shared_) return;
  continue_from(cache().create(draft_.reading.keys));
  owns_prefix_ = true;
  const std::vector<int32_t> known = known_ids(prefix, draft_.engine->config().vocab_size);
  const decode::SeqTokens text[] = {{prefix_slot_, known, false}};
  draft_.engine->prefill(text, {});
}

void DraftSequences::continue_from(int slot) {
  if (owns_prefix_) cache().release(prefix_slot_);
  owns_prefix_ = false;
  prefix_slot_ = slot;
}

std::span<const int32_t> DraftSequences::unread(const decode::DrawSeq& seq) const {
  return seq.tokens.subspan(static_cast<size_t>(cache().length(slot_of(seq))));
}

bool DraftSequences::read(std::span<const decode::DrawSeq> seqs) {
  if (!is_asked_ || is_shared_) return false;
  std::vector<decode::SeqTokens> texts;
  std::vector<std::vector<int32_t>> known;
  known.reserve(seqs.size());
  for (const decode::DrawSeq& s : seqs) {
    if (!slots_.contains(s.slot))
      slots_[s.slot] = prefix_slot_ >= 0 ? cache().fork(prefix_slot_, draft_.reading.keys)
                                         : cache().create(draft_.reading.keys);
    const std::span<const int32_t> lacking = unread(s);
    if (std::ssize(lacking) <= max_unread()) continue;
    // The round's first forward takes the others: a window need not go back for them.
    const size_t n = lacking.size() - static_cast<size_t>(max_unread());
    known.push_back(known_ids(lacking.first(n), draft_.engine->config().vocab_size));
    texts.push_back({slot_of(s), known.back(), true});
  }
  if (!texts.empty()) draft_.engine->prefill(texts, {});
  return !texts.empty();
}

const std::vector<kv::Step>& DraftSequences::begin(Round& round) {
  const TokenTree& tree = round.tree();
  const std::span<const decode::DrawSeq> seqs = round.seqs();
  const bool on_gpu = draft_.engine->queue() != nullptr;
  // Known tokens are read again for that.
  const int least = on_gpu || round.may_be_ahead() || round.is_within() ? max_unread() : 1;
  std::vector<kv::Step> earlier = std::exchange(steps_, {});  // gone, should this fail
  bool is_as_before = !earlier.empty() && tree_ == &tree && unread_.size() == seqs.size() &&
                      earlier.front().places == round.places();
  tree_ = &tree;
  nodes_run_ = tree.level_begin[static_cast<size_t>(tree.levels()) - 1];
  round_slots_.resize(seqs.size());
  unread_.resize(seqs.size());
  for (size_t b = 0; b < seqs.size(); ++b) {
    const int slot = slot_of(seqs[b]), length = static_cast<int>(seqs[b].tokens.size());
    if (length - cache().length(slot) < least) cache().uncommit(slot, length - least);
    const int chain = length - cache().length(slot);
    TANDEM_CHECK(chain >= 1 && chain <= max_unread(), "{} unread tokens of {} are out of range",
                 chain, length);
    is_as_before = is_as_before && unread_[b] == chain;
    round_slots_[b] = slot;
    unread_[b] = chain;
  }
  if (is_as_before) {
    cache().begin_again(earlier, round_slots_, &round.outbox(), round.most_pending());
    steps_ = std::move(earlier);
  } else {
    steps_ = lay_out(round);
  }
  Flight flight{.slots = round_slots_, .unread = unread_, .text = {}, .nodes_run = nodes_run_};
  for (const decode::DrawSeq& s : seqs) flight.text.push_back(static_cast<int>(s.tokens.size()));
  flights_.push_back(std::move(flight));
  return steps_;
}

std::vector<kv::Step> DraftSequences::lay_out(Round& round) const {
  const size_t n = unread_.size();
  std::vector<kv::SeqRows> rows;
  std::vector<std::vector<int>> parents(n), level_ends(n);
  std::vector<kv::Tree> trees;
  for (size_t b = 0; b < n; ++b) {
    const int chain = unread_[b];
    for (int i = 0; i < chain; ++i) parents[b].push_back(i - 1);
    for (int node = 1; node < nodes_run_; ++node)
      parents[b].push_back(chain - 1 + tree_->parent[static_cast<size_t>(node)]);
    for (int level = 1; level < tree_->levels(); ++level)
      level_ends[b].push_back(chain - 1 + tree_->level_begin[static_cast<size_t>(level)]);
    rows.push_back({round_slots_[b], chain - 1 + nodes_run_, false});
    trees.push_back({parents[b]});
  }
  return cache().begin_levels({.rows = rows,
                               .trees = trees,
                               .reading = draft_.reading,
                               .outbox = &round.outbox(),
                               .places = round.places(),
                               .ahead = round.most_pending()},
                              level_ends);
}

void DraftSequences::keep(const kv::PagedStore::AcceptedPaths& paths) {
  if (!is_shared_) cache().move_paths(steps_.back(), paths);
}

void DraftSequences::accept(std::span<const std::span<const int32_t>> paths,
                            const std::vector<bool>& gone) {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  if (is_shared_) return;  // the target's commit is theirs
  std::vector<Ended> ended;
  for (const std::span<const int32_t> path : paths) {
    // Nodes of a path ascend: those that were run come first.
    const auto n_run = std::ranges::lower_bound(path, flight.nodes_run) - path.begin();
    ended.push_back({.accepted = static_cast<int>(path.size()), .held = static_cast<int>(n_run)});
  }
  end_round(flight, ended, gone);
}

void DraftSequences::accept_chains(std::span<const int> accepted, const std::vector<bool>& gone) {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  if (is_shared_) return;
  std::vector<Ended> ended;
  // The last two tokens of a chain may be a leaf, which was not run, and the one drawn after it.
  constexpr int kNotRun = 2;
  for (const int n : accepted) ended.push_back({.accepted = n, .held = n - kNotRun});
  end_round(flight, ended, gone);
}

void DraftSequences::end_round(const Flight& flight, std::span<const Ended> ended,
                               const std::vector<bool>& gone) {
  std::vector<int32_t> slots;
  std::vector<int> kept;
  for (size_t b = 0; b < ended.size(); ++b) {
    if (gone[b]) continue;
    const int32_t slot = flight.slots[b];
    // The round began there, though the one before it may have left a token more.
    const int base = flight.text[b] - flight.unread[b];
    if (cache().length(slot) > base) cache().uncommit(slot, base);
    for (Flight& later : flights_)
      for (size_t i = 0; i < later.slots.size(); ++i)
        if (later.slots[i] == slot) later.text[i] = flight.text[b] + ended[b].accepted + 1;
    slots.push_back(slot);
    kept.push_back(flight.unread[b] + ended[b].held);
  }
  cache().keep(slots, kept);
}

void DraftSequences::forget(int slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return;
  cache().release(it->second);
  slots_.erase(it);
}

}  // namespace tandem::speculate
