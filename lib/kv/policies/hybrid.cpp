#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/rng.h"
#include "kv/policies/centered_keys.h"
#include "kv/policies/coded_lists.h"
#include "kv/policies/hybrid_exact.h"
#include "kv/policies/hybrid_tail.h"
#include "kv/policies/key_codes.h"
#include "kv/policies/policies.h"
#include "kv/policies/scratch.h"
#include "kv/policies/sparse_policy.h"

namespace tandem::kv {
namespace {

using recipe::HybridBudget;
using recipe::HybridTail;

constexpr uint64_t kCodeSeed = 0x51690000;
constexpr int kBlockTokens = 32768;

/// A small exact set that key codes rank, and mean values by estimated weight for the rest: the
/// exact set finds what a query looks for, the means keep the long tail's share of the output.
class HybridPolicy final : public SparsePolicy {
 public:
  HybridPolicy(const recipe::Cache& cache, const Bounds& bounds)
      // As many are read exactly anyway; the frame of fewer would suit no key that follows.
      : SparsePolicy(cache, bounds, static_cast<int>(cache.sinks), 1, kBlockTokens,
                     recipe::Hybrid::kLeastExact),
        spec_(cache.hybrid),
        seed_(static_cast<uint64_t>(cache.lsh.seed)),
        codes_(cache.hybrid, kCodeSeed + seed_, bounds, index(), grid()) {
    if (!bounds.on_gpu()) return;
    if (shares_sets()) check_sharing();
    if (layers().empty()) return;
    int rows = rows_at_a_time(CodedLists::row_bytes(spec_, bounds, codes_), CodedLists::kMostBytes);
    // Steps that the CPU serves come in two halves.
    if (cache.cpu_attends()) rows = std::min(rows, (bounds.max_rows + 1) / 2);
    device_lists_.emplace(spec_, seed_, bounds, codes_, index(), rows);
  }

  Needs needs() const override {
    Needs needs = SparsePolicy::needs();
    needs.list_tails = device_lists_ && device_lists_->has_tail();
    needs.list_heads = device_lists_ ? device_lists_->heads_a_list() : 1;
    return needs;
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    SparsePolicy::plan(plan, prefix);
    codes_.plan(plan, prefix);
    if (device_lists_) device_lists_->plan(plan, prefix);
  }
  void set_up(Arena& arena, const std::string& prefix, const Connections& to) override {
    SparsePolicy::set_up(arena, prefix, to);
    codes_.allocate(arena, prefix);
    codes_.run_on(to.exec);
    queries_ = to.queries;
    if (!device_lists_) return;
    device_lists_->allocate(arena, prefix);
    device_lists_->run_on(to.exec);
  }
  KeyUsage device_usage() const override {
    return device_lists_ ? device_lists_->errors() : KeyUsage{};
  }
  void on_fork(int from, int to) override {
    SparsePolicy::on_fork(from, to);
    codes_.on_fork(from, to, exec());
  }

  void select(int layer, const Step& step, const Tensor& q, AttendPlan& plan) override {
    if (!device_lists_ || ordinal(layer) < 0 || device_lists_->most() == 0)
      return SparsePolicy::select(layer, step, q, plan);
    plan.add({.lists = {.rest = device_index().rests()}});
    device_lists_->choose(layer, ordinal(layer), step, q, device_index(), plan);
  }

  bool takes_groups() const override { return shares_sets(); }
  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }

  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    if (index().empty(query.slot)) return;  // the plan's range has all its keys
    const Scratch s(scratch, *this);
    const auto d = static_cast<size_t>(geometry().head_dim);
    const int ord = ordinal(query.layer), n = index().end(query.slot) - index().begin();
    if (most_exact(n) == n) return read_all(s.ids, n, lists);
    const CodeFrame frame = codes_.frame(query.slot, ord, query.kv_head);
    query.read_q(0, {s.q, lists.size() * d});
    const ops::ScoreScale scale = geometry().scale(query.layer);
    for (size_t h = 0; h < lists.size(); ++h)
      s.queries[h] = codes_.query(frame, {s.q + h * d, d}, scale, s.rotated,
                                  s.sums + h * 4 * codes_.dims(), s.q8 + h * codes_.dims());
    codes_.scan(query.slot, ord, query.kv_head, {s.queries, lists.size()}, s.scores,
                static_cast<int64_t>(score_stride()));
    // Once for all heads of a group: they then sample the same keys where they can.
    if (samples()) ops::draw_exponentials({.draws = s.draws, .key = draw_key(query)}, {0, n});
    const int n_rows = codes_.means(query.slot, ord, query.kv_head, s.rows);
    for (KeyList& list : lists) {
      list.segments.push_back(sinks_segment());
      list.n_static = list.segments[0].n;
      // The scan is shared by the heads of the group, and so are the means.
      list.index_bytes = (codes_.scan_bytes_a_key() * n +
                          (spec_.tail == HybridTail::none ? 0 : codes_.tail_bytes(n))) /
                         static_cast<double>(lists.size());
    }
    const size_t sharing = shares_sets() ? lists.size() : 1;
    for (size_t h = 0; h < lists.size(); h += sharing)
      choose_exact({.spec = spec_,
                    .codes = codes_,
                    .query = query,
                    .ordinal = ord,
                    .queries = {s.queries + h, sharing},
                    .scores = s.scores + h * score_stride(),
                    .stride = static_cast<int64_t>(score_stride()),
                    .n = n,
                    .wanted = most_exact(n),
                    .first_id = index().begin(),
                    .ids = s.ids + h * id_room(),
                    .candidates = s.candidates,
                    .refined = s.refined,
                    .ranks = s.ranks,
                    .select = s.select,
                    .masses = s.masses},
                   lists.subspan(h, sharing), {s.exact + h, sharing});
    if (spec_.tail == HybridTail::none) return;
    for (size_t h = 0; h < lists.size(); ++h) {
      const float center = dot_of({s.q + h * d, d}, {frame.center, d});
      if (const ValueClusters* clusters = codes_.clusters()) {
        float* const masses = s.masses + h * runs();
        const float threshold = s.exact[h].threshold;
        std::fill_n(masses, kValueClusters, 0.0f);
        clusters->add_masses(query.slot, ord, query.kv_head, s.scores + h * score_stride(),
                             threshold, threshold, masses);
        lists[h].tail = {{s.rows, 1}, masses, threshold + center / scale.root()};
        continue;
      }
      add_tail({.spec = spec_,
                .query = query,
                .head = static_cast<int>(h),
                .scores = {s.scores + h * score_stride(), static_cast<size_t>(n)},
                .threshold = s.exact[h].threshold,
                .origin = center / scale.root(),
                .first_id = index().begin(),
                .rows = {s.rows, static_cast<size_t>(n_rows)},
                .exact_mass = s.exact[h].mass,
                .scale = scale.f64(),
                .draws = s.draws,
                .masses = s.masses + h * runs(),
                .ids = s.ids + h * id_room() + s.exact[h].n,
                .bias = s.bias + h * id_room()},
               lists[h]);
    }
  }

 protected:
  void index_tokens(const TokenIndex::Work& work, const PagedStore& store) override {
    codes_.index_tokens(work, layers(), store, queries_,
                        bounds().on_gpu() ? device_index().pages() : nullptr);
  }
  int list_keys() const override { return device_lists_ ? device_lists_->most() : 0; }
  double expected_keys(int n) const override {
    return std::min<double>(n, expected_exact(n) + expected_sampled(n));
  }
  double expected_index_bytes(int n) const override {
    if (most_exact(n) == n) return 0;
    const double means = spec_.tail == HybridTail::none ? 0 : codes_.tail_bytes(n);
    const double candidates = std::min<double>(n, std::max(2.0 * most_exact(n), spec_.refine * n));
    return codes_.scan_bytes_a_key() * n + means +
           codes_.refine_bytes_a_key() * candidates * (shares_sets() ? 1 : geometry().group());
  }
  double expected_group_keys(int n) const override {
    if (!shares_sets()) return SparsePolicy::expected_group_keys(n);
    return expected_exact(n) + geometry().group() * expected_sampled(n);
  }

 private:
  /// Whether the heads of a KV head read the same keys exactly.
  bool shares_sets() const {
    return spec_.group == recipe::HybridGroup::shared && geometry().group() > 1;
  }
  double expected_exact(int n) const {
    return std::min<double>(n, std::max<double>(spec_.kLeastExact, spec_.exact * n));
  }
  double expected_sampled(int n) const { return samples() ? spec_.sample * n : 0; }
  /// Ids of one head: the exact ones, the sampled ones, and what selections may write past either.
  size_t id_room() const {
    return (samples() ? 2 : 1) * static_cast<size_t>(bounds().max_tokens) + 64;
  }
  bool samples() const { return spec_.tail == HybridTail::sampled; }
  size_t score_stride() const { return static_cast<size_t>(codes_.score_room()); }
  /// Masses of a head: of runs, or of clusters.
  size_t runs() const { return std::max<size_t>(score_stride() / kMeanKeys + 1, kValueClusters); }

  struct Scratch {
    ScratchCutter cutter;
    float *q, *rotated;
    uint8_t* sums;
    int8_t* q8;
    CodeQuery* queries;
    float *scores, *select, *refined, *ranks, *draws, *bias, *masses;
    int32_t *candidates, *ids;
    MeanRows* rows;
    ExactKeys* exact;

    Scratch(std::byte* base, const HybridPolicy& p) : cutter(base) {
      const size_t room = static_cast<size_t>(p.bounds().max_tokens) + 16;
      const size_t dims = p.codes_.dims(), group = p.group();
      q = cutter.take<float>(group * static_cast<size_t>(p.geometry().head_dim));
      rotated = cutter.take<float>(dims);
      sums = cutter.take<uint8_t>(group * 4 * dims);
      q8 = cutter.take<int8_t>(group * dims);
      queries = cutter.take<CodeQuery>(group);
      scores = cutter.take<float>(group * p.score_stride());
      select = cutter.take<float>(room);
      refined = cutter.take<float>((p.shares_sets() ? group : 1) * p.score_stride() + 16);
      ranks = cutter.take<float>(p.shares_sets() ? room : 0);
      draws = cutter.take<float>(p.samples() ? room : 0);
      bias = cutter.take<float>(p.samples() ? group * p.id_room() : 0);
      masses = cutter.take<float>(group * p.runs());
      candidates = cutter.take<int32_t>(room);
      ids = cutter.take<int32_t>(group * p.id_room());
      rows =
          cutter.take<MeanRows>(p.score_stride() / static_cast<size_t>(p.index().capacity()) + 1);
      exact = cutter.take<ExactKeys>(group);
    }
  };

  /// Keys that a head reads exactly at most, of n indexed ones.
  int most_exact(int n) const {
    return std::min(
        n, std::max(recipe::Hybrid::kLeastExact, static_cast<int>(std::lround(spec_.exact * n))));
  }
  /// Every indexed key, for all heads: nothing has to be ranked.
  void read_all(int32_t* ids, int n, std::span<KeyList> lists) const {
    std::iota(ids, ids + n, index().begin());
    for (KeyList& list : lists) {
      list.segments.push_back(sinks_segment());
      list.n_static = list.segments[0].n;
      list.segments.push_back({ids, n, nullptr, nullptr});
      if (spec_.budget == HybridBudget::error) list.error = 0;
      if (shares_sets() && &list != lists.data()) list.n_before = list.n_keys();
    }
  }

  /// Random numbers differ between positions, layers and KV heads, and repeat with the seed.
  uint32_t draw_key(const KeyQuery& query) const {
    return draw4(seed_, static_cast<uint32_t>(query.position),
                 static_cast<uint32_t>(query.layer * geometry().n_kv_heads + query.kv_head),
                 DrawPurpose::keys)[1];
  }

  /// What a GPU can't share yet.
  void check_sharing() const {
    if (spec_.tail == HybridTail::sampled || spec_.budget != HybridBudget::share)
      throw make_error(ErrorKind::device, "cache.hybrid.group",
                       "shared needs a tail without samples and budget share on a GPU, found tail "
                       "{} and budget {}",
                       recipe::yaml_text(spec_.tail), recipe::yaml_text(spec_.budget))
          .hint(
              "set cache.hybrid.group to head, set tail means and budget share, or use --device "
              "cpu");
    if (geometry().group() > kMostSharing)
      throw make_error(ErrorKind::device, "cache.hybrid.group",
                       "shared supports up to {} query heads a KV head on a GPU, the model has {}",
                       kMostSharing, geometry().group())
          .hint("set cache.hybrid.group to head, or use --device cpu");
  }

  recipe::Hybrid spec_;
  uint64_t seed_;
  KeyCodes codes_;
  std::optional<CodedLists> device_lists_;  // on a GPU
  const QueryRing* queries_ = nullptr;
};

}  // namespace

std::unique_ptr<Policy> make_hybrid(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<HybridPolicy>(cache, bounds);
}

}  // namespace tandem::kv
