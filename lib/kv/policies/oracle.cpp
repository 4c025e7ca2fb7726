#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "kv/policies/centered_keys.h"
#include "kv/policies/policies.h"
#include "kv/policies/scratch.h"
#include "kv/policies/sparse_policy.h"

namespace tandem::kv {
namespace {

/// What an ideal method of the same budget would read, at the price of scoring every key: the best
/// keys (topk), or keys drawn with replacement by their softmax weight (oracle_sampling, MagicPIG
/// definition 3.1). All visible tokens compete, sinks and recent ones too. For judging, not for
/// speed.
class OraclePolicy final : public SelectingPolicy {
 public:
  OraclePolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds),
        ratio_(cache.topk.ratio),
        seed_(static_cast<uint64_t>(cache.lsh.seed)),
        samples_(cache.kind == recipe::CacheKind::oracle_sampling) {}

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    if (!bounds().on_gpu() || layers().empty()) return;
    const size_t bytes = GpuScratch(nullptr, *this, list_rows()).cutter.bytes();
    plan.add(prefix + ".choosing", bytes, bounds().device);
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections&) override {
    if (bounds().on_gpu() && !layers().empty())
      gpu_scratch_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
  }

  void select(int layer, const Step& step, const Tensor& q, AttendPlan& plan) override {
    if (ordinal(layer) < 0) return plan.add({.window = geometry().window(layer)});
    TANDEM_CHECK(step.tree_mask.empty(), "{} does not support token trees", kind());
    if (!bounds().on_gpu()) {
      plan.selector = this;
      return;
    }
    const GpuScratch s(gpu_scratch_, *this, list_rows());
    plan.lists = {.ids = s.ids,
                  .bias = samples_ ? s.bias : nullptr,
                  .count = s.count,
                  .stride = list_keys(),
                  .most = list_keys()};
    plan.list_rows = list_rows();
    plan.make_lists = [this, layer, &step, &q, s](Range rows, const PagedStore& store) {
      choose_on_gpu(layer, step, q, rows, store, s);
    };
  }

  KeysRead keys_read(int layer, int length) const override {
    return {.total = geometry().visible(layer, length),  // every key is scored
            .chosen = ordinal(layer) < 0 ? 0 : static_cast<double>(budget_of(length))};
  }

  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }

  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    const Scratch s(scratch, *this);
    const auto d = static_cast<size_t>(geometry().head_dim);
    const int n = query.position + 1;
    const int budget = budget_of(n);
    const size_t room = id_room();
    for (size_t h = 0; h < lists.size(); ++h) {
      query.read_q(h, {s.q, d});
      score_all(query, n, {s.q, d}, s);
      int32_t* ids = s.ids + h * room;
      float *bias = s.bias + h * room, threshold = 0;
      KeyList& list = lists[h];
      if (samples_)
        list.segments.push_back(
            {ids, draw(query, static_cast<int>(h), n, budget, s, ids, bias), bias, nullptr});
      else
        list.segments.push_back({ids,
                                 ops::select_top({.ids = ids,
                                                  .threshold = &threshold,
                                                  .scores = s.scores,
                                                  .n = n,
                                                  .m = budget,
                                                  .first_id = 0,
                                                  .scratch = s.select}),
                                 nullptr, nullptr});
      // Every key is scored, once for the heads of a group.
      list.index_bytes = static_cast<double>(n) * static_cast<double>(d) *
                         static_cast<double>(dtype_bytes(geometry().dtype)) /
                         static_cast<double>(lists.size());
    }
  }

 protected:
  int list_keys() const override { return budget_of(bounds().max_tokens); }

 private:
  struct Scratch {
    ScratchCutter cutter;
    float *q, *key, *scores, *select, *bias;
    int32_t *ids, *drawn;
    double* cumulative;

    Scratch(std::byte* base, const OraclePolicy& p)
        : cutter(base),
          q(cutter.take<float>(static_cast<size_t>(p.geometry().head_dim))),
          key(cutter.take<float>(static_cast<size_t>(p.geometry().head_dim))),
          scores(cutter.take<float>(p.id_room())),
          select(cutter.take<float>(p.id_room())),
          bias(cutter.take<float>(p.group() * p.id_room())),
          ids(cutter.take<int32_t>(p.group() * p.id_room())),
          drawn(cutter.take<int32_t>(p.id_room())),
          cumulative(cutter.take<double>(p.id_room())) {}
  };

  /// A GPU's, of the lists of some rows.
  struct GpuScratch {
    ScratchCutter cutter;
    float* scores;
    int32_t *n, *m, *count, *ids;
    float* bias;
    int32_t* drawn;
    double* cumulative;

    GpuScratch(std::byte* base, const OraclePolicy& p, int n_rows) : cutter(base) {
      const auto lists = static_cast<size_t>(n_rows) * static_cast<size_t>(p.geometry().n_heads);
      const size_t tokens = lists * static_cast<size_t>(p.bounds().max_tokens);
      const size_t keys = lists * static_cast<size_t>(p.list_keys());
      scores = cutter.take<float>(tokens);
      n = cutter.take<int32_t>(lists);
      m = cutter.take<int32_t>(lists);
      count = cutter.take<int32_t>(lists);
      ids = cutter.take<int32_t>(keys);
      bias = cutter.take<float>(p.samples_ ? keys : 0);
      drawn = cutter.take<int32_t>(p.samples_ ? tokens : 0);
      cumulative = cutter.take<double>(p.samples_ ? tokens : 0);
    }
  };
  int list_rows() const { return rows_at_a_time(GpuScratch(nullptr, *this, 1).cutter.bytes()); }

  void choose_on_gpu(int layer, const Step& step, const Tensor& q, Range rows,
                     const PagedStore& store, const GpuScratch& s) const {
    const Geometry& g = geometry();
    const ops::StepArrays& arrays = step.arrays;
    const ChoosingRows choosing = choosing_rows(step, rows);
    const Stream stream = store.exec().stream();
    ops::score_keys({.scores = s.scores,
                     .n = s.n,
                     .m = s.m,
                     .q = q.raw(),
                     .k_pool = store.k(layer).raw(),
                     .page_table = arrays.page_table,
                     .score_stride = bounds().max_tokens,
                     .choosing = choosing,
                     .max_pages = arrays.max_pages,
                     .n_heads = g.n_heads,
                     .n_kv_heads = g.n_kv_heads,
                     .d = g.head_dim,
                     .dtype = g.dtype,
                     .max_tokens = bounds().max_tokens,
                     .scale = g.scale(layer).f32(),
                     .ratio = ratio_},
                    stream);
    if (samples_)
      return ops::draw_keys({.ids = s.ids,
                             .bias = s.bias,
                             .count = s.count,
                             .scores = s.scores,
                             .n = s.n,
                             .m = s.m,
                             .drawn = s.drawn,
                             .cumulative = s.cumulative,
                             .id_stride = list_keys(),
                             .score_stride = bounds().max_tokens,
                             .choosing = choosing,
                             .layer = layer,
                             .n_heads = g.n_heads,
                             .seed = seed_},
                            stream);
    ops::select_top({.ids = s.ids,
                     .count = s.count,
                     .scores = s.scores,
                     .n = s.n,
                     .m = s.m,
                     .id_stride = list_keys(),
                     .score_stride = bounds().max_tokens,
                     .n_lists = (rows.end - rows.begin) * g.n_heads},
                    stream);
  }

  /// Keys of a text of n tokens that are chosen, or draws.
  int budget_of(int n) const { return std::max(1, static_cast<int>(ratio_ * n)); }
  /// Ids of one head: all tokens, and what a selection may write past its last.
  size_t id_room() const { return static_cast<size_t>(bounds().max_tokens) + 16; }

  void score_all(const KeyQuery& query, int n, std::span<const float> q, const Scratch& s) const {
    const float scale = geometry().scale(query.layer).f32();
    for (int t = 0; t < n; ++t) {
      query.keys.read(t, s.key);
      s.scores[t] = scale * dot_of(q, {s.key, q.size()});
    }
  }

  /// The mean of the values drawn: key i counts with its share of the draws, whatever its score.
  /// The list's log-sum-exp stays that of all keys.
  int draw(const KeyQuery& query, int head, int n, int budget, const Scratch& s, int32_t* ids,
           float* bias) const {
    const float top = *std::max_element(s.scores, s.scores + n);
    double sum = 0;
    for (int t = 0; t < n; ++t) s.cumulative[t] = sum += std::exp(double{s.scores[t]} - top);
    PhiloxStream random(
        seed_ ^ (static_cast<uint64_t>(query.position) << 20),
        static_cast<uint32_t>(query.layer * geometry().n_heads + query.first_head + head));
    for (int i = 0; i < budget; ++i) {
      const double at = random.uniform() * sum;
      s.drawn[i] = static_cast<int32_t>(std::min<std::ptrdiff_t>(
          n - 1, std::upper_bound(s.cumulative, s.cumulative + n, at) - s.cumulative));
    }
    std::sort(s.drawn, s.drawn + budget);
    const double lse = top + std::log(sum);
    int n_ids = 0;
    for (int i = 0; i < budget;) {
      int end = i;
      while (end < budget && s.drawn[end] == s.drawn[i]) ++end;
      ids[n_ids] = s.drawn[i];
      bias[n_ids++] = static_cast<float>(lse + std::log(double(end - i) / budget) -
                                         double{s.scores[s.drawn[i]]});
      i = end;
    }
    return n_ids;
  }

  double ratio_;
  uint64_t seed_;
  bool samples_;
  std::byte* gpu_scratch_ = nullptr;
};

}  // namespace

std::unique_ptr<Policy> make_oracle(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<OraclePolicy>(cache, bounds);
}

}  // namespace tandem::kv
