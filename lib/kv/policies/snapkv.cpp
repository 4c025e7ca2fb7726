#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "kv/policies/copied_keys.h"
#include "kv/policies/policies.h"
#include "kv/policies/sparse_policy.h"
#include "kv/policies/voted_keys.h"
#include "kv/query_ring.h"

namespace tandem::kv {
namespace {

/// SnapKV (arXiv 2404.14469), by KV head as in MagicDec: at the end of a prompt its last `window`
/// queries choose `budget` tokens, themselves among them, for every row that follows; what follows
/// is read exactly. Keys keep their true positions; the CPU reads them where they are, a GPU from
/// copies. Deviation: `sinks` first tokens are always among the chosen ones, which few selections
/// notice; 0 is the paper's rule.
class SnapKvPolicy final : public SelectingPolicy {
 public:
  SnapKvPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds),
        spec_(cache.snapkv),
        sinks_(static_cast<int>(cache.sinks)),
        budget_(static_cast<int>(cache.snapkv.budget)),
        keys_({.budget = budget_,
               .window = cache.snapkv.window,
               .pool = cache.snapkv.pool,
               .sinks = sinks_,
               .scaled = cache.snapkv.scale == recipe::SnapScale::on,
               .lists = bounds.on_gpu() ? VotedKeys::Lists::passed_on : VotedKeys::Lists::kept},
              layers(), bounds),
        slots_(static_cast<size_t>(bounds.max_seqs)) {
    TANDEM_CHECK(budget_ > spec_.window + sinks_, "budget {} must exceed the {} fixed tokens",
                 budget_, spec_.window + sinks_);
    if (bounds.on_gpu()) copies_.emplace(keys_.n_chosen(), layers(), bounds);
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    keys_.plan(plan, prefix);
    if (copies_) copies_->plan(plan, prefix, /*own_pages=*/true);
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections& to) override {
    keys_.allocate(arena, prefix);
    queries_ = to.queries;
    keys_.read_queries(*queries_);
    if (!copies_) return;
    copies_->allocate(arena, prefix, /*own_pages=*/true);
    copies_->run_on(to.exec);
  }

  void on_prompt(int slot, const PagedStore& store) override {
    choose(slot, store.length(slot), store);
  }
  void on_commit(std::span<const int32_t> slots, const PagedStore& store) override {
    const int every = spec_.refresh.tokens;
    for (const int32_t slot : slots) {
      const int length = store.length(slot), last = at(slot).chosen_at;
      if (every == 0 || length - last < every) continue;
      // A round may commit tokens beyond the one that was due: the choice is that token's.
      const int due = last + (length - last) / every * every;
      choose(slot, queries_->begin(slot) <= due - spec_.window ? due : length, store);
    }
  }
  void on_fork(int from, int to) override {
    if (!copies_)
      keys_.kept().fork(from, to);
    else if (copies_->any())
      copies_->fork(from, to);
    set(to, at(from));
  }
  void on_release(int slot) override {
    try {
      set(slot, {});
    } catch (const Error&) {
      at(slot) = {};  // the GPU has stopped: nothing reads copies there
    }
  }
  void on_truncate(int slot, int n, const PagedStore& store) override {
    // Tokens of the window may go, and others come: they are read exactly.
    if (n < at(slot).tail_begin) choose(slot, n, store);
    at(slot).chosen_at = std::min(at(slot).chosen_at, n);
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    if (copies_ && ordinal(layer) >= 0 && copies_->any())
      return plan.add({.lists = copies_->lists(layer)});
    plan_from(
        layer, step, [&](int slot) { return at(slot).tail_begin; }, plan);
  }

  int next_change(int slot) const override {
    return spec_.refresh.tokens > 0 ? at(slot).chosen_at + spec_.refresh.tokens
                                    : SelectingPolicy::next_change(slot);
  }

  /// Lists lie in the policy's own memory.
  size_t scratch_bytes() const override { return 64; }
  void select_keys(const KeyQuery& query, std::byte*, std::span<KeyList> lists) const override {
    if (at(query.slot).tail_begin == 0) return;  // the plan's range has all its keys
    share_list(keys_.kept().at(query.slot, ordinal(query.layer), query.kv_head), keys_.n_chosen(),
               sinks_, lists);
  }

  KeysRead keys_read(int layer, int length) const override {
    return {.total =
                ordinal(layer) < 0 ? geometry().visible(layer, length) : std::min(length, budget_)};
  }

 private:
  struct Slot {
    int tail_begin = 0;  // tokens from here on are read exactly; 0 = all
    int chosen_at = 0;   // tokens that the choice knew
  };

  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  void set(int slot, const Slot& now) {
    if (copies_ && now.tail_begin != at(slot).tail_begin)
      copies_->set_rest(slot, now.tail_begin, keys_.n_chosen());
    at(slot) = now;
  }

  /// Chooses among the first n tokens by the last queries of them that are held.
  void choose(int slot, int n, const PagedStore& store) {
    const int first_query = std::max(n - spec_.window, queries_->begin(slot));
    const bool held = first_query < n && queries_->end(slot) >= n;
    const bool chooses = n > budget_ && held && !layers().empty();
    if (chooses && copies_) copies_->begin(slot, keys_.n_chosen());
    if (chooses)
      keys_.choose(slot, first_query, n, store,
                   [&](int ordinal, const int32_t* ids, const int32_t* pages) {
                     copies_->copy(slot,
                                   {.layer = layers()[static_cast<size_t>(ordinal)],
                                    .ids = ids,
                                    .id_stride = keys_.n_chosen(),
                                    .run = 1,
                                    .pages = pages},
                                   store);
                   });
    set(slot, {.tail_begin = chooses ? n - spec_.window : 0, .chosen_at = n});
  }

  recipe::SnapKv spec_;
  int sinks_, budget_;
  VotedKeys keys_;
  std::optional<CopiedKeys> copies_;  // on a GPU
  const QueryRing* queries_ = nullptr;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<Policy> make_snapkv(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<SnapKvPolicy>(cache, bounds);
}

}  // namespace tandem::kv
