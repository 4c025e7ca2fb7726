#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kv/policies/policies.h"
#include "kv/policies/sparse_policy.h"
#include "kv/policies/voted_keys.h"
#include "kv/query_ring.h"

namespace tandem::kv {
namespace {

/// For drafts that read the target's own cache (after Vegas, arXiv 2602.07223, and SparseSpec,
/// 2512.01278): each verification reads all keys, and leaves how much its rows attended to each;
/// the best of the tokens before it serve the drafts until the next, and what came since is read
/// exactly. Deviation: half of the budget are the last tokens, regardless of their scores: few rows
/// say little of what the next ones read nearby. A prompt's last queries choose the first set.
/// Rejected rows are among those that choose: only drafts see the set. What a verification chooses
/// follows from its own arrays, so on a GPU the host need not know: only the lists there say.
class VerifiedPolicy final : public SelectingPolicy {
 public:
  VerifiedPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds),
        window_(cache.verified.window),
        budget_(static_cast<int>(cache.verified.budget)),
        keys_({.budget = budget_, .window = window_}, layers(), bounds),
        slots_(static_cast<size_t>(bounds.max_seqs)) {
    TANDEM_CHECK(recent() >= window_, "budget {} is too small for a window of {}", budget_,
                 window_);
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    keys_.plan(plan, prefix);
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections& to) override {
    keys_.allocate(arena, prefix);
    queries_ = to.queries;
    keys_.read_queries(*queries_);
    keys_.read_scores(*to.scores);
  }

  void on_prompt(int slot, const PagedStore& store) override {
    choose_by_queries(slot, store.length(slot), store);
  }
  void on_scores(const Step& step) override {
    keys_.choose_scored(step, recent());
    for (int b = 0; b < step.n_seqs && !bounds().on_gpu(); ++b) {
      const auto i = static_cast<size_t>(b);
      if (step.rows_of(b) > 0 && step.base[i] > budget_ && !layers().empty())
        at(step.slot[i]) = {.tail_begin = step.base[i] - recent(), .n_ids = budget_ - recent()};
    }
  }
  void on_fork(int from, int to) override {
    at(to) = at(from);
    keys_.kept().fork(from, to);
  }
  void on_release(int slot) override {
    try {
      set(slot, {});
    } catch (const Error&) {
      // The GPU has stopped: nothing reads lists there.
    }
  }
  void on_truncate(int slot, int n, const PagedStore& store) override {
    const int tail_begin = bounds().on_gpu() ? keys_.kept().rest(slot) : at(slot).tail_begin;
    if (n < tail_begin) choose_by_queries(slot, n, store);
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    if (bounds().on_gpu() && ordinal(layer) >= 0 && keys_.n_chosen() > 0)
      return plan.add({.lists = keys_.kept().of_layer(ordinal(layer))});
    plan_from(
        layer, step, [&](int slot) { return at(slot).tail_begin; }, plan);
  }

  /// Lists lie in the policy's own memory.
  size_t scratch_bytes() const override { return 64; }
  void select_keys(const KeyQuery& query, std::byte*, std::span<KeyList> lists) const override {
    const Slot& slot = at(query.slot);
    if (slot.tail_begin == 0) return;  // the plan's range has all its keys
    share_list(keys_.kept().at(query.slot, ordinal(query.layer), query.kv_head), slot.n_ids, 0,
               lists);
  }

  KeysRead keys_read(int layer, int length) const override {
    return {.total =
                ordinal(layer) < 0 ? geometry().visible(layer, length) : std::min(length, budget_)};
  }

 private:
  /// On the CPU; a GPU has its own, which a verification changes there.
  struct Slot {
    int tail_begin = 0;  // tokens from here on are read exactly; 0 = all
    int n_ids = 0;       // of a list
  };

  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  void set(int slot, const Slot& now) {
    at(slot) = now;
    if (bounds().on_gpu()) keys_.kept().set_rest(slot, now.tail_begin, now.n_ids);
  }
  /// Tokens before a verification that are read regardless of their scores.
  int recent() const { return budget_ / 2; }

  /// Chooses among the first n tokens by the last queries of them that are held.
  void choose_by_queries(int slot, int n, const PagedStore& store) {
    const int first = std::max(n - window_, queries_->begin(slot));
    const bool held = first < n && queries_->end(slot) >= n;
    const bool chooses = n > budget_ && held && !layers().empty();
    if (chooses) keys_.choose(slot, first, n, store);
    set(slot, chooses ? Slot{.tail_begin = n - window_, .n_ids = keys_.n_chosen()} : Slot{});
  }

  int window_, budget_;
  VotedKeys keys_;
  const QueryRing* queries_ = nullptr;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<Policy> make_verified(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<VerifiedPolicy>(cache, bounds);
}

}  // namespace tandem::kv
