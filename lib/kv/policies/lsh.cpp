#include <optional>

#include "kv/hosted/hosted_keys.h"
#include "kv/policies/device_lsh.h"
#include "kv/policies/lsh_tables.h"
#include "kv/policies/policies.h"
#include "kv/policies/prompt_tables.h"
#include "kv/policies/scratch.h"
#include "kv/policies/sparse_policy.h"

namespace tandem::kv {
namespace {

/// MagicPIG (arXiv 2410.16179): keys that share the query's bucket in at least min_hits tables are
/// sampled, each with the inverse of its collision probability as weight; sinks, recent and
/// generated tokens are exact.
class LshPolicy final : public SparsePolicy {
 public:
  LshPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SparsePolicy(cache, bounds, static_cast<int>(cache.sinks), 1, kHashBlockTokens),
        tables_(cache.lsh, bounds.geometry, index(), grid()),
        centers_(bounds, grid()) {
    if (bounds.on_gpu())
      on_gpu_.emplace(cache.lsh, bounds, index(), grid());
    else if (bounds.hosted && bounds.prompts.kind == Device::Kind::cuda)
      of_prompts_.emplace(cache.lsh, bounds, index(), grid(), bounds.prompts);
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    SparsePolicy::plan(plan, prefix);
    if (on_gpu_) return plan_on_gpu(plan, prefix);
    tables_.plan(plan, prefix);
    centers_.plan(plan, prefix);
    if (of_prompts_) of_prompts_->plan(plan, prefix + ".prompts");
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections& to) override {
    SparsePolicy::set_up(arena, prefix, to);
    if (on_gpu_) {
      on_gpu_->allocate(arena, prefix);
      on_gpu_->run_on(to.exec, tables_.log_u());
      if (grid().n_sparse > 0)
        list_scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
      return;
    }
    tables_.allocate(arena, prefix);
    centers_.allocate(arena, prefix);
    if (of_prompts_) of_prompts_->allocate(arena, prefix + ".prompts");
  }
  void read_hosted(HostedKeys& keys, int, const Exec& prompts) override {
    if (of_prompts_) of_prompts_->run_on(prompts, keys.copies(), tables_, centers_);
  }
  bool takes_read_prompts() const override {
    return of_prompts_.has_value() || SparsePolicy::takes_read_prompts();
  }
  std::vector<std::string> pinned(const std::string& prefix) const override {
    if (!of_prompts_) return {};
    return {prefix + ".tables", prefix + ".norms", prefix + ".centers"};
  }
  std::string why_unpinned() const override {
    return of_prompts_ ? of_prompts_->why_unpinned() : std::string{};
  }
  /// Buckets are probed, no key is scored.
  Choosing choosing(int layer, int length) const override {
    return {.bytes = SparsePolicy::choosing(layer, length).bytes};
  }
  void on_fork(int from, int to) override {
    SparsePolicy::on_fork(from, to);
    if (on_gpu_)
      on_gpu_->copy_center(from, to);
    else
      centers_.copy(from, to);
  }

  void select(int layer, const Step& step, const Tensor& q, AttendPlan& plan) override {
    const int ord = ordinal(layer);
    if (!on_gpu_ || ord < 0) return SparsePolicy::select(layer, step, q, plan);
    const DeviceLsh::Scratch s(list_scratch_, *on_gpu_, list_rows());
    plan.add({.lists = {.rest = device_index().rests()}});
    plan.lists = on_gpu_->lists(s);
    plan.list_rows = list_rows();
    plan.make_lists = [this, ord, &step, &q, s](Range rows, const PagedStore&) {
      on_gpu_->choose(ord, choosing_rows(step, rows), q.raw(), device_index(), s);
    };
  }

  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }
  std::span<const float> log_u() const override { return tables_.log_u(); }

  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    if (index().empty(query.slot)) return;  // the plan's range has all its keys
    const Scratch s(scratch, *this);
    const auto d = static_cast<size_t>(geometry().head_dim);
    const int ord = ordinal(query.layer);
    query.read_q(0, {s.q, lists.size() * d});
    tables_.hash_queries(s.q, query.n_heads, s.bits, s.codes);
    const std::span<const float> center(centers_.at(query.slot, ord, query.kv_head), d);
    for (size_t h = 0; h < lists.size(); ++h) {
      KeyList& list = lists[h];
      const std::span<const float> q(s.q + h * d, d);
      list.q_norm = norm_of(q);
      list.q_center = dot_of(q, center);
      list.segments.push_back(sinks_segment());
      list.n_static = list.segments[0].n;
      tables_.add_collisions(query, ord, s.codes + h * static_cast<size_t>(tables_.tables()),
                             s.counters, s.ids + h * id_room(), list);
    }
  }

 protected:
  void index_tokens(const TokenIndex::Work& work, const PagedStore& store) override {
    if (grid().n_sparse == 0) return;  // and so no keys that another place has
    if (on_gpu_) return on_gpu_->index_tokens(work, layers(), device_index(), store);
    // Keys of prompts that a GPU reads; all others, and those of later hooks, are in host memory.
    if (store.exec().on_gpu())
      return of_prompts_->index_tokens(work, layers()[static_cast<size_t>(work.ordinals.begin)],
                                       store);
    if (work.fresh)
      centers_.set(work.slot, layers(), work.ordinals, index().begin(), index().end(work.slot),
                   store);
    tables_.index_tokens(work, layers(), centers_, store);
  }
  /// All keys may collide.
  int list_keys() const override { return bounds().max_tokens; }
  double expected_keys(int n) const override { return n * tables_.expected_share(); }
  double expected_index_bytes(int n) const override {
    // A key that is chosen costs a line of norms, too.
    constexpr double kLine = 64;
    return geometry().group() * (tables_.expected_probe_bytes(n) + kLine * expected_keys(n));
  }

 private:
  int list_rows() const {
    return rows_at_a_time(DeviceLsh::Scratch(nullptr, *on_gpu_, 1).cutter.bytes());
  }
  void plan_on_gpu(MemoryPlan& plan, const std::string& prefix) const {
    on_gpu_->plan(plan, prefix);
    if (grid().n_sparse > 0)
      plan.add(prefix + ".choosing",
               DeviceLsh::Scratch(nullptr, *on_gpu_, list_rows()).cutter.bytes(), bounds().device);
  }

  /// Ids of one head: all tokens, and what a probe may write past its last.
  size_t id_room() const { return static_cast<size_t>(bounds().max_tokens) + 16; }

  struct Scratch {
    ScratchCutter cutter;
    float* q;
    uint64_t* bits;
    uint16_t* codes;
    uint8_t* counters;
    int32_t* ids;

    Scratch(std::byte* base, const LshPolicy& p)
        : cutter(base),
          q(cutter.take<float>(p.group() * static_cast<size_t>(p.geometry().head_dim))),
          bits(cutter.take<uint64_t>(p.group() * p.tables_.query_bits_words())),
          codes(cutter.take<uint16_t>(p.group() * static_cast<size_t>(p.tables_.tables()))),
          counters(cutter.take<uint8_t>(p.tables_.counter_bytes())),
          ids(cutter.take<int32_t>(p.group() * p.id_room())) {}
  };

  LshTables tables_;
  KeyCenters centers_;
  std::optional<PromptTables> of_prompts_;  // where a GPU reads prompts and the CPU chooses
  std::optional<DeviceLsh> on_gpu_;         // in their place
  std::byte* list_scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<Policy> make_lsh(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<LshPolicy>(cache, bounds);
}

}  // namespace tandem::kv
