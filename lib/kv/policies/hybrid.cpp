#include <algorithm>
#include <cmath>
#include <optional>

#include "base/rng.h"
#include "kv/policies/lsh_tables.h"
#include "kv/policies/policies.h"
#include "kv/policies/scratch.h"
#include "kv/policies/signatures.h"
#include "kv/policies/sparse_policy.h"
#include "kv/policies/tail_sample.h"

namespace tandem::kv {
namespace {

using recipe::HybridTail;

/// Seeds that keep signatures and hash tables independent.
constexpr uint64_t kSignatureSeed = 0x51690000;

/// A small exact set that cheap signatures rank, and a sample of the rest with importance weights:
/// the exact set finds what a query looks for, the sample keeps the long tail's share of the
/// output.
class HybridPolicy final : public SparsePolicy {
 public:
  HybridPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SparsePolicy(cache, bounds, static_cast<int>(cache.sinks), 1, kHashBlockTokens),
        spec_(cache.hybrid),
        seed_(static_cast<uint64_t>(cache.lsh.seed)),
        signatures_(cache.hybrid.bits, kSignatureSeed + seed_, bounds.geometry, index(), grid()),
        centers_(bounds, grid()) {
    if (spec_.tail == HybridTail::lsh) tables_.emplace(cache.lsh, bounds.geometry, index(), grid());
  }

  void plan(MemoryPlan& plan, const std::string& prefix) const override {
    signatures_.plan(plan, prefix + ".ranking");
    centers_.plan(plan, prefix);
    if (tables_) tables_->plan(plan, prefix);
  }
  void allocate(Arena& arena, const std::string& prefix) override {
    signatures_.allocate(arena, prefix + ".ranking");
    centers_.allocate(arena, prefix);
    if (tables_) tables_->allocate(arena, prefix);
  }
  void on_fork(int from, int to) override {
    SparsePolicy::on_fork(from, to);
    centers_.copy(from, to);
  }

  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }
  std::span<const float> log_u() const override {
    return tables_ ? tables_->log_u() : std::span<const float>{};
  }

  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    if (index().empty(query.slot)) return;  // the plan's range has all its keys
    const Scratch s(scratch, *this);
    const auto d = static_cast<size_t>(geometry().head_dim);
    const int ord = ordinal(query.layer), n = index().end(query.slot) - index().begin();
    query.read_q(0, {s.q, lists.size() * d});
    signatures_.sign_queries(s.q, query.n_heads, s.bits, s.signatures);
    signatures_.scan(query.slot, ord, query.kv_head, s.signatures, query.n_heads, s.scores,
                     static_cast<int64_t>(score_stride()));
    if (tables_) tables_->hash_queries(s.q, query.n_heads, s.bits, s.codes);
    // Once for all heads of a group: they then sample the same keys where they can.
    if (spec_.tail == HybridTail::weighted)
      ops::draw_exponentials({.draws = s.draws, .key = static_cast<uint32_t>(draw_key(query))},
                             {0, n});
    const std::span<const float> center(centers_.at(query.slot, ord, query.kv_head), d);
    for (size_t h = 0; h < lists.size(); ++h) {
      KeyList& list = lists[h];
      const std::span<const float> q(s.q + h * d, d),
          scores(s.scores + h * score_stride(), static_cast<size_t>(n));
      list.q_norm = norm_of(q);
      list.q_center = dot_of(q, center);
      list.segments.push_back(sinks_segment());
      list.n_static = list.segments[0].n;
      // The scan is shared by the heads of the group.
      list.index_bytes = signatures_.bytes_a_key() * n / static_cast<double>(lists.size());
      int32_t* ids = s.ids + h * id_room();
      float threshold = 0;
      const int exact = ops::select_top({.ids = ids,
                                         .threshold = &threshold,
                                         .scores = scores.data(),
                                         .n = n,
                                         .m = static_cast<int>(std::lround(spec_.exact * n)),
                                         .first_id = index().begin(),
                                         .scratch = s.select});
      list.segments.push_back({ids, exact, nullptr, nullptr});
      const std::span<const int32_t> taken(ids, static_cast<size_t>(exact));
      add_tail({query, static_cast<int>(h), scores, exact > 0 ? threshold : INFINITY, taken}, s,
               ids + exact, list);
    }
  }

 protected:
  void index_tokens(int slot, const std::vector<TokenIndex::Piece>& pieces, bool fresh,
                    const PagedStore& store) override {
    if (fresh) centers_.set(slot, layers(), index().begin(), index().end(slot), store);
    signatures_.index_tokens(slot, pieces, layers(), centers_, store);
    if (tables_) tables_->index_tokens(slot, pieces, layers(), centers_, store);
  }
  double expected_keys(int n) const override {
    double share = spec_.exact;
    if (spec_.tail == HybridTail::lsh)
      share += tables_->expected_share();
    else if (spec_.tail != HybridTail::none)
      share += spec_.sample;
    return n * std::min(1.0, share);
  }

 private:
  /// Ids of one head: the exact ones, a tail that may hold all tokens before those already taken
  /// are dropped, and what selections may write past their last.
  size_t id_room() const {
    return static_cast<size_t>(bounds().max_tokens) * (spec_.tail == HybridTail::none ? 1 : 2) + 64;
  }
  /// Scores of one head: whole vectors of whole blocks.
  size_t score_stride() const {
    const auto capacity = static_cast<size_t>(index().capacity());
    return (static_cast<size_t>(bounds().max_tokens) + capacity - 1) / capacity * capacity;
  }

  struct Scratch {
    ScratchCutter cutter;
    float* q;
    uint64_t* bits;
    uint32_t* signatures;
    uint16_t* codes;
    uint8_t* counters;
    float *scores, *select, *draws, *bias;
    int32_t* ids;

    Scratch(std::byte* base, const HybridPolicy& p)
        : cutter(base),
          q(cutter.take<float>(p.group() * static_cast<size_t>(p.geometry().head_dim))),
          bits(cutter.take<uint64_t>(
              p.group() *
              std::max(p.signatures_.bits_words(), p.tables_ ? p.tables_->query_bits_words() : 0))),
          signatures(cutter.take<uint32_t>(p.group() * static_cast<size_t>(p.signatures_.words()))),
          codes(cutter.take<uint16_t>(
              p.tables_ ? p.group() * static_cast<size_t>(p.tables_->tables()) : 0)),
          counters(cutter.take<uint8_t>(p.tables_ ? p.tables_->counter_bytes() : 0)),
          scores(cutter.take<float>(p.group() * p.score_stride())),
          select(cutter.take<float>(static_cast<size_t>(p.bounds().max_tokens) + 16)),
          draws(cutter.take<float>(static_cast<size_t>(p.bounds().max_tokens) + 16)),
          bias(cutter.take<float>(p.group() * p.id_room())),
          ids(cutter.take<int32_t>(p.group() * p.id_room())) {}
  };

  /// What a tail is drawn from: all keys but those already taken.
  struct Rest {
    const KeyQuery& query;
    int head;
    std::span<const float> scores;
    float threshold;  // of the taken ones
    std::span<const int32_t> taken;
  };

  /// Random numbers differ between positions, layers and KV heads, and repeat with the seed.
  uint64_t draw_key(const KeyQuery& query) const {
    const auto words =
        draw4(seed_, static_cast<uint32_t>(query.position),
              static_cast<uint32_t>(query.layer * geometry().n_kv_heads + query.kv_head),
              DrawPurpose::keys);
    return (uint64_t{words[0]} << 32) | words[1];
  }

  void add_tail(const Rest& rest, const Scratch& s, int32_t* ids, KeyList& list) const {
    if (spec_.tail == HybridTail::none) return;
    if (tables_)
      return tables_->add_collisions(rest.query, ordinal(rest.query.layer),
                                     s.codes + rest.head * tables_->tables(), rest.taken,
                                     s.counters, ids, list);
    const int n = static_cast<int>(rest.scores.size()), first = index().begin();
    const double wanted = spec_.sample * n;
    float* bias = s.bias + static_cast<size_t>(rest.head) * id_room();
    int count = 0;
    if (spec_.tail == HybridTail::uniform) {
      const double stratum = std::max(1.0, (n - static_cast<double>(rest.taken.size())) / wanted);
      count = sample_uniform(n, first, stratum, draw_key(rest.query), ids, bias);
    } else {
      const double gain = spec_.trust * list.q_norm / std::sqrt(double(geometry().head_dim));
      count = ops::sample_tail({.ids = ids,
                                .bias = bias,
                                .scores = rest.scores.data(),
                                .draws = s.draws,
                                .n = n,
                                .first_id = first,
                                .threshold = rest.threshold,
                                .gain = static_cast<float>(gain),
                                .wanted = static_cast<float>(wanted)});
    }
    count = drop_excluded(ids, bias, count, rest.taken);
    list.segments.push_back({ids, count, bias, nullptr});
  }

  recipe::Hybrid spec_;
  uint64_t seed_;
  Signatures signatures_;
  KeyCenters centers_;
  std::optional<LshTables> tables_;
};

}  // namespace

std::unique_ptr<Policy> make_hybrid(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<HybridPolicy>(cache, bounds);
}

}  // namespace tandem::kv
