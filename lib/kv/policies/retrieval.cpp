#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kv/policies/chunk_copies.h"
#include "kv/policies/chunk_keys.h"
#include "kv/policies/policies.h"
#include "kv/policies/sparse_policy.h"
#include "kv/query_ring.h"

namespace tandem::kv {
namespace {

/// TriForce's retrieval cache (arXiv 2404.11912): the last query of a prompt chooses chunks of
/// tokens by its products with their mean keys, and every row that follows reads these, chunk 0
/// among them, the tokens after the last whole chunk, and generated ones. The budget is of all
/// of these: generated tokens take the place of the worst chunks. Keys keep their true positions
/// and are read where they are, or from copies where another reader has them in host memory.
/// Deviations: chunks give way some at a time (step_), so that few
/// numbers of tokens change what rows read; and where no chunk would be left the last query chooses
/// again, generated text included, even if `rebuild` is never.
/// Next to another reader a later choice, that of a prompt that goes on, too, waits for the commit
/// after the one with which it is due, and over keys in host memory it is made layer by layer as
/// these pass by on the way there, as that of a new prompt is: nothing else comes over the link.
/// Such a text that is too long to be read whole, none of whose queries are held, has the first
/// chunk and the newest tokens until one more is committed.
class RetrievalPolicy final : public SelectingPolicy, public HostedIndex {
 public:
  RetrievalPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds),
        spec_(cache.retrieval),
        budget_(static_cast<int>(spec_.budget)),
        step_(
            std::clamp(budget_ / kStepShare / spec_.chunk * spec_.chunk, spec_.chunk, kPageTokens)),
        keys_({.budget = budget_, .chunk = spec_.chunk, .group = spec_.group}, layers(), bounds),
        slots_(static_cast<size_t>(bounds.max_seqs)),
        shown_(slots_.size()) {
    TANDEM_CHECK(budget_ >= 2 * spec_.chunk + spec_.force_recent,
                 "budget {} is too small for chunks of {}", budget_, spec_.chunk);
    if (bounds.far_layers.empty()) return;
    for (const int layer : bounds.far_layers)
      if (ordinal(layer) < 0)
        throw recipe_error(
            "cache.dense_layers",
            "layer {} reads all keys in every draft step, but they are in host memory", layer)
            .hint("remove dense_layers from spec.draft.cache, or set cache.place to device");
    copies_.emplace(keys_, spec_.chunk, bounds);
    by_layers_.resize(slots_.size());
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    keys_.plan(plan, prefix);
    if (copies_) copies_->plan(plan, prefix);
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections& to) override {
    keys_.allocate(arena, prefix);
    keys_.run_on(to.exec);
    queries_ = to.queries;
    keys_.read_queries(*queries_);
    if (!copies_) return;
    copies_->allocate(arena, prefix);
    copies_->run_on(to.exec);
  }

  const HostedIndex* hosted() const override { return copies_ ? this : nullptr; }
  void read_hosted(HostedKeys& keys, int reader, const Exec&) override {
    copies_->read_hosted(keys, reader - 1);
  }

  void on_layer(int layer, int slot, int length, const PagedStore& prompt) override {
    if (!is_far(layer)) return;
    ByLayers& by = by_layers_[static_cast<size_t>(slot)];
    // Nothing could bring back what copies of an earlier choice were: on_prompt chooses again.
    if (copies_->is_first(layer)) {
      by = {};
      if (can_choose(slot, length) && at(slot).n_chosen == 0 && !keys_.has_means(slot)) {
        by.now = to_choose(length);
        by.work = keys_.extend(slot, by.now.tail_begin);
        copies_->begin(slot, by.now.n_chosen);
      }
    }
    if (by.now.n_chosen > 0) choose_layer(by.now, by.work, ordinal(layer), prompt);
  }
  void on_give_up(int slot) override {
    const ByLayers by = std::exchange(by_layers_[static_cast<size_t>(slot)], {});
    if (by.now.n_chosen == 0) return;
    keys_.release(slot);
    copies_->drop(slot);
  }
  void on_prompt(int slot, const PagedStore& store) override {
    const int n = store.length(slot);
    ByLayers by = copies_ ? std::exchange(by_layers_[static_cast<size_t>(slot)], {}) : ByLayers{};
    if (by.now.n_chosen == 0) {
      if (!may_wait(slot, n)) return choose(slot, n, store);
      set(slot, at(slot), n);  // of the text that this one goes on
      at(slot).waits = n;
      return;
    }
    TANDEM_CHECK(by.now.chosen_at == n, "chunks were chosen at {} tokens, expected {}",
                 by.now.chosen_at, n);
    finish(slot, by, store);
  }
  void on_round(int slot, int accepted, int offered) override {
    Slot& s = at(slot);
    s.accepted = kMemory * s.accepted + accepted;
    s.tried = kMemory * s.tried + accepted + (accepted < offered ? 1 : 0);
  }
  void on_pass(int layer, const Step& step, const PagedStore& keys) override {
    if (!is_far(layer)) return;
    for (const int32_t slot : step.slot) {
      ByLayers& by = by_layers_[static_cast<size_t>(slot)];
      if (copies_->is_first(layer)) {
        const int n = at(slot).waits;
        const bool chooses = n > 0 && can_choose(slot, n);
        // Keys pass by again before a commit where a round is ahead, or one is not kept.
        if (!chooses || by.now.chosen_at != n) discard(slot);
        if (chooses && by.now.n_chosen == 0) {
          by.now = to_choose(n);
          by.work = keys_.extend(slot, by.now.tail_begin);
        }
        if (chooses) copies_->begin(slot, by.now.n_chosen);
        by.is_done = false;
      }
      if (by.now.n_chosen == 0) continue;
      choose_layer(by.now, by.work, ordinal(layer), keys);
      by.is_done = copies_->is_last(layer);
    }
  }
  void on_commit(std::span<const int32_t> slots, const PagedStore& store) override {
    for (const int32_t slot : slots) {
      const int length = store.length(slot);
      if (at(slot).waits > 0) choose_waiting(slot, store);
      Slot now = at(slot);
      // A round may commit tokens beyond those that were due: the last choice stands.
      while (due(now) <= length) now = chosen_at(due(now));
      int n = 0;  // tokens that a choice is to know; 0: none is due
      if (accepts_too_few(now) && can_choose(slot, length))
        n = length;
      else if (now.chosen_at != at(slot).chosen_at)
        n = can_choose(slot, now.chosen_at) ? now.chosen_at : length;
      // The last query is held until the next commit, as others may not be.
      const bool waits = n > 0 && may_wait(slot, length);
      if (n > 0 && !waits) {
        choose(slot, n, store);
      } else {
        set(slot, at(slot), length);
        at(slot).waits = waits ? length : 0;
      }
    }
  }
  void on_fork(int from, int to) override {
    keys_.fork(from, to);
    at(to) = at(from);
    shown_[static_cast<size_t>(to)] = shown_[static_cast<size_t>(from)];
    if (!has_copies()) return;
    copies_->fork(from, to);
    copies_->set_rest(to, at(to).tail_begin, at(to).n_chunks);
  }
  void on_release(int slot) override {
    keys_.release(slot);
    if (copies_) by_layers_[static_cast<size_t>(slot)] = {};
    try {
      set(slot, {}, 0);
    } catch (const Error&) {
      at(slot) = {};  // the GPU has stopped: nothing reads lists there
    }
  }
  void on_truncate(int slot, int n, const PagedStore& store) override {
    keys_.cut(slot, n);
    const bool was_choosing = discard(slot);
    Slot now = at(slot);
    if (now.waits > n) now.waits = 0;
    if (was_choosing) return choose(slot, n, store);  // its lists are those of no choice in force
    if (n < now.chosen_at && (n <= budget_ || can_choose(slot, n) || n < now.tail_begin))
      return choose(slot, n, store);
    // Where no queries are held, the rest of the choice goes on, with no more chunks than it has.
    now.chosen_at = std::min(now.chosen_at, n);
    set(slot, now, n);
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    if (bounds().on_gpu() && ordinal(layer) >= 0 && keys_.capacity() > 0)
      return plan.add(
          {.lists = is_far(layer) ? copies_->lists(layer) : keys_.kept().of_layer(ordinal(layer))});
    plan_from(
        layer, step, [&](int slot) { return at(slot).tail_begin; }, plan);
  }

  int next_change(int slot) const override {
    const Slot& now = at(slot);
    return std::min(due(now), now.tail_begin > 0 ? now.given_way_to + 1 : kNever);
  }

  /// Lists lie in the policy's own memory.
  size_t scratch_bytes() const override { return 64; }
  void select_keys(const KeyQuery& query, std::byte*, std::span<KeyList> lists) const override {
    const Slot& slot = at(query.slot);
    if (slot.tail_begin == 0) return;  // the plan's range has all its keys
    share_list(is_far(query.layer)
                   ? copies_->rows()
                   : keys_.kept().at(query.slot, ordinal(query.layer), query.kv_head),
               slot.n_chunks * spec_.chunk, spec_.chunk, lists);
  }
  ListedCopies copies(int layer) const override {
    return is_far(layer) ? copies_->listed() : ListedCopies{};
  }

  int range_begin(int slot) const override { return at(slot).tail_begin; }
  int most_ranged() const override { return budget_ + spec_.chunk; }

  KeysRead keys_read(int layer, int length) const override {
    return {.total =
                ordinal(layer) < 0 ? geometry().visible(layer, length) : std::min(length, budget_)};
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  static constexpr int kStepShare = 16;   // of the budget: what gives way at a time, up to a page
  static constexpr double kMemory = 0.9;  // a round on, of what rounds before it accepted
  static constexpr int kLeastTried = 8;   // drafted tokens that a judgement needs

  struct Slot {
    int chosen_at = 0;     // tokens that the choice knew
    int tail_begin = 0;    // tokens from here on are read exactly; 0 = all
    int n_chosen = 0;      // chunks of the lists
    int n_chunks = 0;      // of them, that are read
    int given_way_to = 0;  // tokens of a text that need no fewer chunks
    int waits = 0;         // tokens that the next choice is to know; 0: none waits for a commit
    // Drafted tokens since the choice, later ones with more weight: those that were right, and
    // those that were looked at.
    double accepted = 0, tried = 0;
  };

  /// A choice layer by layer: a prompt's while it goes through them, a later one while keys pass
  /// by.
  struct ByLayers {
    Slot now;  // without chunks where it is left to on_prompt or on_commit
    TokenIndex::Work work;
    bool is_done = false;  // in all layers that pass by
  };

  bool is_far(int layer) const { return copies_ && copies_->has(layer); }
  bool has_copies() const { return copies_ && copies_->any(); }
  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }

  /// What a choice that knows n tokens makes; within the budget there is none.
  Slot chosen_at(int n) const {
    const int tail = n - static_cast<int>(spec_.force_recent);
    return {.chosen_at = n, .tail_begin = n > budget_ ? tail / spec_.chunk * spec_.chunk : 0};
  }
  /// Tokens that a choice has for chunks, and for tokens generated after it.
  int room(const Slot& s) const { return budget_ - (s.chosen_at - s.tail_begin); }
  /// Tokens of a text with which generated ones leave room for no chunk.
  int used_up(const Slot& s) const {
    return s.chosen_at + (room(s) - spec_.chunk) / step_ * step_ + 1;
  }
  /// Tokens of a text with which keys are chosen again.
  int due(const Slot& s) const {
    if (keys_.capacity() == 0 || layers().empty()) return kNever;
    if (s.tail_begin == 0) return std::max(budget_, s.chosen_at) + 1;
    const int most = used_up(s) - s.chosen_at;
    // Before, where it may wait.
    const int soon = most - (bounds().follows ? std::min(most / 4, kPageTokens) : 0);
    const int every = spec_.rebuild.tokens;
    return s.chosen_at + (every > 0 ? std::min(every, soon) : soon);
  }
  /// Whether a choice among all `length` tokens of a text can be left to its next commit, before
  /// which keys in host memory pass by.
  bool may_wait(int slot, int length) const {
    const Slot& s = at(slot);
    return bounds().follows && s.tail_begin > 0 && can_choose(slot, length) && length < used_up(s);
  }
  /// The same with as many chunks as it has room for.
  Slot to_choose(int n) const {
    Slot now = chosen_at(n);
    now.n_chosen = room(now) / spec_.chunk;
    return now;
  }
  bool accepts_too_few(const Slot& s) const {
    return s.tried >= kLeastTried && s.accepted < spec_.rebuild.alpha * s.tried;
  }
  /// Makes it the slot's, whose text has `length` tokens.
  void set(int slot, Slot now, int length) {
    if (now.tail_begin > 0) {
      const int generated = (length - now.chosen_at + step_ - 1) / step_ * step_;
      now.n_chunks = std::clamp((room(now) - generated) / spec_.chunk, 1, now.n_chosen);
      now.given_way_to = now.chosen_at + generated;
    }
    at(slot) = now;
    std::pair<int, int>& shown = shown_[static_cast<size_t>(slot)];
    if (bounds().on_gpu() && shown != std::pair(now.tail_begin, now.n_chunks)) {
      shown = {now.tail_begin, now.n_chunks};
      keys_.kept().set_rest(slot, shown.first, shown.second);
    }
    if (has_copies()) copies_->set_rest(slot, now.tail_begin, now.n_chunks);
  }

  int first_query(int slot, int n) const {
    return std::max(n - spec_.n_queries(), queries_->begin(slot));
  }
  bool can_choose(int slot, int n) const {
    return n > budget_ && first_query(slot, n) < n && queries_->end(slot) >= n &&
           keys_.capacity() > 0 && !layers().empty();
  }
  /// Chooses among the first n tokens by the last queries of them that are held.
  void choose(int slot, int n, const PagedStore& store) {
    if (!can_choose(slot, n)) return choose_none(slot, n);
    const Slot now = to_choose(n);
    TokenIndex::Work work = keys_.extend(slot, now.tail_begin);
    if (!copies_) {
      keys_.choose(work, {first_query(slot, n), n}, now.n_chosen, store);
    } else {
      begin_copies(slot, now);
      for (const int layer : layers())
        choose_layer(now, work, ordinal(layer), is_far(layer) ? copies_->far() : store);
    }
    set(slot, now, store.length(slot));
  }
  /// The choice that waited for this commit.
  void choose_waiting(int slot, const PagedStore& store) {
    const int n = std::exchange(at(slot).waits, 0);
    const bool is_done = copies_ && by_layers_[static_cast<size_t>(slot)].is_done &&
                         by_layers_[static_cast<size_t>(slot)].now.chosen_at == n;
    if (!is_done) {
      discard(slot);
      return choose(slot, can_choose(slot, n) ? n : store.length(slot), store);
    }
    ByLayers by = std::exchange(by_layers_[static_cast<size_t>(slot)], {});
    at(slot).tail_begin = by.now.tail_begin;
    copies_->make_room(slot);
    finish(slot, by, store);
  }
  /// A choice that has begun layer by layer is not put in force: means that other layers lack are
  /// made again with the next.
  /// returns  whether there was one
  bool discard(int slot) {
    if (!copies_) return false;
    const ByLayers by = std::exchange(by_layers_[static_cast<size_t>(slot)], {});
    if (by.now.n_chosen > 0) keys_.release(slot);
    return by.now.n_chosen > 0;
  }
  /// A choice that was made in the layers that passed by, in the others.
  void finish(int slot, ByLayers& by, const PagedStore& store) {
    for (const int layer : layers())
      if (!is_far(layer)) choose_layer(by.now, by.work, ordinal(layer), store);
    set(slot, by.now, store.length(slot));
  }
  /// All of a text is read, or of one in host memory that is too long for it, its end.
  void choose_none(int slot, int n) {
    Slot now{.chosen_at = n};
    if (has_copies() && n > budget_) {
      const int least = n - budget_ + spec_.chunk;
      now.tail_begin = (least + spec_.chunk - 1) / spec_.chunk * spec_.chunk;
      now.n_chosen = 1;
      keys_.choose_first(slot);
      begin_copies(slot, now);
      copies_->copy_all(slot);
    }
    set(slot, now, n);
  }

  // Over keys in host memory:
  /// Room for copies of a choice that takes the place of the slot's.
  void begin_copies(int slot, const Slot& now) {
    at(slot).tail_begin = now.tail_begin;
    copies_->make_room(slot);
    copies_->begin(slot, now.n_chosen);
  }
  void choose_layer(const Slot& now, TokenIndex::Work& work, int ord, const PagedStore& from) {
    const int layer = layers()[static_cast<size_t>(ord)];
    work.ordinals = {ord, ord + 1};
    keys_.choose(work, {first_query(work.slot, now.chosen_at), now.chosen_at}, now.n_chosen, from);
    if (!is_far(layer)) return;
    if (&from == &copies_->far()) copies_->count_choice(keys_.keys_read(work));
    copies_->copy(work.slot, layer, from);
  }

  recipe::Retrieval spec_;
  int budget_, step_;
  ChunkKeys keys_;
  const QueryRing* queries_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<std::pair<int, int>>
      shown_;                          // [slots] tail_begin and n_chunks that a GPU's lists have
  std::optional<ChunkCopies> copies_;  // over keys in host memory
  std::vector<ByLayers> by_layers_;    // [slots], there
};

}  // namespace

std::unique_ptr<Policy> make_retrieval(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<RetrievalPolicy>(cache, bounds);
}

}  // namespace tandem::kv
