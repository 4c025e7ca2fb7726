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

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    if (ordinal(layer) < 0) return plan.add({.window = geometry().window(layer)});
    TANDEM_CHECK(step.tree_mask.empty(), "{} does not verify trees", name());
    plan.selector = this;
  }

  int keys_read(int layer, int length) const override {
    return geometry().visible(layer, length);  // every key is scored
  }

  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }

  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    const Scratch s(scratch, *this);
    const auto d = static_cast<size_t>(geometry().head_dim);
    const int n = query.position + 1;
    const int budget = std::max(1, static_cast<int>(ratio_ * n));
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

  /// Ids of one head: all tokens, and what a selection may write past its last.
  size_t id_room() const { return static_cast<size_t>(bounds().max_tokens) + 16; }

  void score_all(const KeyQuery& query, int n, std::span<const float> q, const Scratch& s) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(q.size()));
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
};

}  // namespace

std::unique_ptr<Policy> make_oracle(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<OraclePolicy>(cache, bounds);
}

}  // namespace tandem::kv
