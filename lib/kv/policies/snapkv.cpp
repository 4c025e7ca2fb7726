#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/parallel.h"
#include "kv/policies/policies.h"
#include "kv/policies/pool_votes.h"
#include "kv/policies/scratch.h"
#include "kv/policies/sparse_policy.h"
#include "kv/query_ring.h"

namespace tandem::kv {
namespace {

/// SnapKV (arXiv 2404.14469), by KV head as in MagicDec: at the end of a prompt its last `window`
/// queries choose `budget` tokens, themselves among them, for every row that follows; what follows
/// is read exactly. Keys stay where they are, under their true positions. Deviation: `sinks` first
/// tokens are always among the chosen ones, which few selections notice; 0 is the paper's rule.
class SnapKvPolicy final : public SelectingPolicy {
 public:
  SnapKvPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds),
        spec_(cache.snapkv),
        sinks_(static_cast<int>(cache.sinks)),
        budget_(static_cast<int>(cache.snapkv.budget)),
        slots_(static_cast<size_t>(bounds.max_seqs)),
        tail_begin_(static_cast<size_t>(bounds.max_seqs)) {
    TANDEM_CHECK(budget_ > spec_.window + sinks_, "a budget of {}, {} fixed", budget_,
                 spec_.window + sinks_);
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
    at(to) = at(from);
    if (slot_ids() > 0) std::copy_n(ids(from, 0), slot_ids(), ids(to, 0));
  }
  void on_release(int slot) override { at(slot) = {}; }
  void on_truncate(int slot, int n, const PagedStore& store) override {
    // Tokens of the window may go, and others come: they are read exactly.
    if (n < at(slot).tail_begin) choose(slot, n, store);
    at(slot).chosen_at = std::min(at(slot).chosen_at, n);
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    bool any = false;
    for (int b = 0; b < step.n_seqs; ++b) {
      const int begin = ordinal(layer) < 0 ? 0 : at(step.slot[static_cast<size_t>(b)]).tail_begin;
      tail_begin_[static_cast<size_t>(b)] = begin;
      any |= begin > 0;
    }
    if (!any) return plan.add({.window = geometry().window(layer)});
    plan.add({.seq_key_lo = tail_begin_.data()});
    plan.selector = this;
  }

  /// Lists lie in the policy's own memory.
  size_t scratch_bytes() const override { return 64; }
  void select_keys(const KeyQuery& query, std::byte*, std::span<KeyList> lists) const override {
    if (at(query.slot).tail_begin == 0) return;  // the plan's range has all its keys
    const int32_t* chosen = ids(query.slot, grid().cell(0, ordinal(query.layer), query.kv_head));
    for (size_t h = 0; h < lists.size(); ++h) {
      lists[h].segments.push_back({chosen, n_chosen(), nullptr, nullptr});
      lists[h].n_static = sinks_;
      lists[h].as_before = h > 0;
      lists[h].index_bytes = h > 0 ? 0 : n_chosen() * static_cast<double>(sizeof(int32_t));
    }
  }

  int keys_read(int layer, int length) const override {
    return ordinal(layer) < 0 ? geometry().visible(layer, length) : std::min(length, budget_);
  }

 private:
  struct Slot {
    int tail_begin = 0;  // tokens from here on are read exactly; 0 = all
    int chosen_at = 0;   // tokens that the choice knew
  };
  struct Scratch {
    ScratchCutter cutter;
    float *q, *votes, *pooled, *select, *kernel;
    int32_t* ids;

    Scratch(std::byte* base, const SnapKvPolicy& p)
        : cutter(base),
          q(cutter.take<float>(p.n_queries() * static_cast<size_t>(p.geometry().head_dim))),
          votes(cutter.take<float>(static_cast<size_t>(p.bounds().max_tokens))),
          pooled(cutter.take<float>(static_cast<size_t>(p.bounds().max_tokens))),
          select(cutter.take<float>(static_cast<size_t>(p.bounds().max_tokens) + 16)),
          kernel(cutter.take<float>(static_cast<size_t>(
              key_votes_scratch(p.geometry().head_dim, static_cast<int>(p.n_queries()))))),
          ids(cutter.take<int32_t>(static_cast<size_t>(p.n_chosen()) + 16)) {}
  };

  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  HeadGrid grid() const { return {static_cast<int>(layers().size()), geometry().n_kv_heads}; }
  size_t n_queries() const { return static_cast<size_t>(spec_.window) * group(); }
  /// Tokens of a list: none where no text is longer than the budget.
  int n_chosen() const { return bounds().max_tokens > budget_ ? budget_ - spec_.window : 0; }
  size_t slot_ids() const { return grid().cells(1) * static_cast<size_t>(n_chosen()); }
  int32_t* ids(int slot, size_t cell) const {
    return ids_ + static_cast<size_t>(slot) * slot_ids() + cell * static_cast<size_t>(n_chosen());
  }
  size_t scratch_bytes_a_thread() const { return Scratch(nullptr, *this).cutter.bytes(); }

  /// Chooses among the first n tokens by the last queries of them that are held.
  void choose(int slot, int n, const PagedStore& store) {
    at(slot) = {.tail_begin = 0, .chosen_at = n};
    const int first_query = std::max(n - spec_.window, queries_->begin(slot));
    const bool held = first_query < n && queries_->end(slot) >= n;
    if (n <= budget_ || !held || layers().empty()) return;
    at(slot).tail_begin = n - spec_.window;
    const int heads = geometry().n_kv_heads, n_tasks = static_cast<int>(layers().size()) * heads;
#pragma omp parallel num_threads(n_scratch_) if (n_tasks > 1)
    {
      const Scratch s(
          scratch_ + static_cast<size_t>(omp_get_thread_num()) * scratch_bytes_a_thread(), *this);
#pragma omp for schedule(dynamic, 1)
      for (int i = 0; i < n_tasks; ++i)
        choose_keys({slot, first_query, n, i / heads, i % heads}, store, s);
    }
  }

  struct Choice {
    int slot, first_query, n, ordinal, kv_head;
  };
  void choose_keys(const Choice& c, const PagedStore& store, const Scratch& s) const {
    const Geometry& g = geometry();
    const int layer = layers()[static_cast<size_t>(c.ordinal)], d = g.head_dim;
    const size_t width = group() * static_cast<size_t>(d);
    for (int t = c.first_query; t < c.n; ++t)
      read_vector(queries_->row(c.slot, layer, t) +
                      static_cast<size_t>(c.kv_head) * width * dtype_bytes(g.dtype),
                  g.dtype, {s.q + static_cast<size_t>(t - c.first_query) * width, width});
    const bool scaled = spec_.scale == recipe::SnapScale::on;
    ops::key_votes({.votes = s.votes,
                    .q = s.q,
                    .k_pool = store.k(layer).raw(),
                    .pages = store.pages(c.slot).data(),
                    .first_position = c.first_query,
                    .n_positions = c.n - c.first_query,
                    .n_heads = g.group(),
                    .n_kv_heads = g.n_kv_heads,
                    .kv_head = c.kv_head,
                    .d = d,
                    .dtype = g.dtype,
                    .scale = scaled ? 1.0f / std::sqrt(static_cast<float>(d)) : 1.0f,
                    .scratch = s.kernel});
    const int n_candidates = c.n - spec_.window;
    pool_votes({s.votes, static_cast<size_t>(n_candidates)}, spec_.pool, s.pooled);
    std::iota(s.ids, s.ids + sinks_, 0);
    float threshold = 0;
    ops::select_top({.ids = s.ids + sinks_,
                     .threshold = &threshold,
                     .scores = s.pooled + sinks_,
                     .n = n_candidates - sinks_,
                     .m = n_chosen() - sinks_,
                     .first_id = sinks_,
                     .scratch = s.select});
    std::copy_n(s.ids, n_chosen(), ids(c.slot, grid().cell(0, c.ordinal, c.kv_head)));
  }

  recipe::SnapKv spec_;
  int sinks_, budget_;
  const QueryRing* queries_ = nullptr;
  int32_t* ids_ = nullptr;  // [slots, sparse layers, KV heads, n_chosen]
  std::byte* scratch_ = nullptr;
  int n_scratch_ = 1;
  std::vector<Slot> slots_;
  std::vector<int32_t> tail_begin_;  // of the step in hand, [B]
};

}  // namespace

std::unique_ptr<Policy> make_snapkv(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<SnapKvPolicy>(cache, bounds);
}

}  // namespace tandem::kv
