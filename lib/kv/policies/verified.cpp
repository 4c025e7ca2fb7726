#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/parallel.h"
#include "kv/policies/policies.h"
#include "kv/policies/sparse_policy.h"
#include "kv/policies/window_votes.h"
#include "kv/query_ring.h"
#include "kv/score_store.h"

namespace tandem::kv {
namespace {

/// For drafts that read the target's own cache (after Vegas, arXiv 2602.07223, and SparseSpec,
/// 2512.01278): each verification reads all keys, and leaves how much its rows attended to each;
/// the best of the tokens before it serve the drafts until the next, and what came since is read
/// exactly. Deviation: half of the budget are the last tokens, regardless of their scores: few rows
/// say little of what the next ones read nearby. A prompt's last queries choose the first set.
/// Rejected rows are among those that choose: only drafts see the set.
class VerifiedPolicy final : public SelectingPolicy {
 public:
  VerifiedPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds),
        spec_(cache.verified),
        budget_(static_cast<int>(cache.verified.budget)),
        slots_(static_cast<size_t>(bounds.max_seqs)) {
    TANDEM_CHECK(budget_ > spec_.window, "a budget of {} with a window of {}", budget_,
                 spec_.window);
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    plan.add(prefix + ".lists", slots_.size() * slot_ids() * sizeof(int32_t));
    plan.add(prefix + ".choosing", scratch_bytes_a_thread() * static_cast<size_t>(max_threads()));
  }
  void allocate(Arena& arena, const std::string& prefix) override {
    if (slot_ids() > 0) ids_ = static_cast<int32_t*>(arena.take(prefix + ".lists"));
    scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
    n_scratch_ = max_threads();
  }
  void read_queries(const QueryRing& queries) override { queries_ = &queries; }
  void read_scores(ScoreStore& scores) override { scores_ = &scores; }

  void on_prompt(int slot, const PagedStore& store) override {
    choose_by_queries(slot, store.length(slot), store);
  }
  void on_commit(std::span<const int32_t> slots, const PagedStore&) override {
    Choices choices;
    for (const int32_t slot : slots) {
      const int n = scores_->tokens(slot);
      if (n <= budget_ || layers().empty()) continue;
      at(slot) = {.tail_begin = n - recent(), .n_ids = budget_ - recent()};
      for (int i = 0; i < n_heads(); ++i) choices.push_back({slot, n, i});
    }
    run(choices, [&](const Choice& c, const Scratch& s) { choose_by_scores(c, s); });
  }
  void on_fork(int from, int to) override {
    at(to) = at(from);
    if (slot_ids() > 0) std::copy_n(ids(from, 0), slot_ids(), ids(to, 0));
  }
  void on_release(int slot) override { at(slot) = {}; }
  void on_truncate(int slot, int n, const PagedStore& store) override {
    if (n < at(slot).tail_begin) choose_by_queries(slot, n, store);
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    plan_from(
        layer, step, [&](int slot) { return at(slot).tail_begin; }, plan);
  }

  /// Lists lie in the policy's own memory.
  size_t scratch_bytes() const override { return 64; }
  void select_keys(const KeyQuery& query, std::byte*, std::span<KeyList> lists) const override {
    const Slot& slot = at(query.slot);
    if (slot.tail_begin == 0) return;  // the plan's range has all its keys
    share_list(ids(query.slot, head(ordinal(query.layer), query.kv_head)), slot.n_ids, 0, lists);
  }

  int keys_read(int layer, int length) const override {
    return ordinal(layer) < 0 ? geometry().visible(layer, length) : std::min(length, budget_);
  }

 private:
  struct Slot {
    int tail_begin = 0;  // tokens from here on are read exactly; 0 = all
    int n_ids = 0;       // of a list
  };
  /// What one KV head of one layer keeps of the first n tokens.
  struct Choice {
    int slot, n, head;
  };
  using Choices = std::vector<Choice>;
  struct Scratch {
    ScratchCutter cutter;
    WindowScratch window;  // the votes, or the scores of all tokens
    float* select;
    int32_t* ids;

    Scratch(std::byte* base, const VerifiedPolicy& p)
        : cutter(base),
          window(cutter, p.bounds(), p.spec_.window),
          select(cutter.take<float>(static_cast<size_t>(p.bounds().max_tokens) + 16)),
          ids(cutter.take<int32_t>(static_cast<size_t>(p.budget_) + 16)) {}
  };

  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  /// Tokens before a verification that are read regardless of their scores.
  int recent() const { return budget_ / 2; }
  /// KV heads of all layers that choose.
  int n_heads() const { return static_cast<int>(layers().size()) * geometry().n_kv_heads; }
  size_t head(int layer, int kv_head) const {
    return static_cast<size_t>(layer * geometry().n_kv_heads + kv_head);
  }
  /// Room for a slot's lists: none where no text is longer than the budget.
  size_t slot_ids() const {
    const bool any = bounds().max_tokens > budget_;
    return any ? static_cast<size_t>(n_heads()) * static_cast<size_t>(budget_) : 0;
  }
  int32_t* ids(int slot, size_t head) const {
    return ids_ + static_cast<size_t>(slot) * slot_ids() + head * static_cast<size_t>(budget_);
  }
  size_t scratch_bytes_a_thread() const { return Scratch(nullptr, *this).cutter.bytes(); }

  template <class Choose>
  void run(const Choices& choices, const Choose& choose) {
    const int n = static_cast<int>(choices.size());
#pragma omp parallel num_threads(n_scratch_) if (n > 1)
    {
      const Scratch s(
          scratch_ + static_cast<size_t>(omp_get_thread_num()) * scratch_bytes_a_thread(), *this);
#pragma omp for schedule(dynamic, 1)
      for (int i = 0; i < n; ++i) choose(choices[static_cast<size_t>(i)], s);
    }
  }

  /// Keeps the m best of the first n of the scratch's votes or scores.
  void keep(const Choice& c, int n, int m, const Scratch& s) const {
    float threshold = 0;
    ops::select_top({.ids = s.ids,
                     .threshold = &threshold,
                     .scores = s.window.votes,
                     .n = n,
                     .m = m,
                     .first_id = 0,
                     .scratch = s.select});
    std::copy_n(s.ids, m, ids(c.slot, static_cast<size_t>(c.head)));
  }

  void choose_by_scores(const Choice& c, const Scratch& s) const {
    const int layer = layers()[static_cast<size_t>(c.head / geometry().n_kv_heads)];
    const f16* scores = scores_->scores(c.slot, layer, c.head % geometry().n_kv_heads);
    // The same bits in wider numbers have the same order: that is all that choosing needs.
    for (int t = 0; t < c.n; ++t) {
      const uint32_t bits = scores[t].bits;
      s.window.votes[t] = std::bit_cast<float>((bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13);
    }
    keep(c, c.n - recent(), budget_ - recent(), s);
  }

  /// Chooses among the first n tokens by the last queries of them that are held.
  void choose_by_queries(int slot, int n, const PagedStore& store) {
    at(slot) = {};
    const int first = std::max(n - spec_.window, queries_->begin(slot));
    const bool held = first < n && queries_->end(slot) >= n;
    if (n <= budget_ || !held || layers().empty()) return;
    at(slot) = {.tail_begin = n - spec_.window, .n_ids = budget_ - spec_.window};
    Choices choices;
    for (int i = 0; i < n_heads(); ++i) choices.push_back({slot, n, i});
    run(choices, [&](const Choice& c, const Scratch& s) { vote(c, first, store, s); });
  }

  void vote(const Choice& c, int first, const PagedStore& store, const Scratch& s) const {
    const Geometry& g = geometry();
    const int layer = layers()[static_cast<size_t>(c.head / g.n_kv_heads)];
    const int kv_head = c.head % g.n_kv_heads;
    count_votes({.slot = c.slot,
                 .layer = layer,
                 .kv_head = kv_head,
                 .first = first,
                 .end = c.n,
                 .scale = 1.0f / std::sqrt(static_cast<float>(g.head_dim))},
                *queries_, store, g, s.window);
    // As if the window had been verified.
    for (int h = 0; h < g.group(); ++h) {
      double sum = 0;
      for (int t = first; t < c.n; ++t) sum += s.window.lse[(t - first) * g.group() + h];
      scores_->lse(c.slot, layer)[kv_head * g.group() + h] =
          static_cast<float>(sum / (c.n - first));
    }
    keep(c, c.n - spec_.window, budget_ - spec_.window, s);
  }

  recipe::Verified spec_;
  int budget_;
  const QueryRing* queries_ = nullptr;
  ScoreStore* scores_ = nullptr;
  int32_t* ids_ = nullptr;  // [slots, sparse layers, KV heads, budget]
  std::byte* scratch_ = nullptr;
  int n_scratch_ = 1;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<Policy> make_verified(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<VerifiedPolicy>(cache, bounds);
}

}  // namespace tandem::kv
