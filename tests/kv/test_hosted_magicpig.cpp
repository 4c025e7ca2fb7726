// MagicPIG's golden vector and statistics over keys in host memory: what lies far is sampled and
// attended there, what lies near by a range, and the two states are merged.
#include "kv/hosted/hosted_keys.h"
#include "lsh_head.h"
#include "mean.h"
#include "ops/attention.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::CachePlace;

namespace {

constexpr int kIntervals = 1024;  // as the policies have it

Ids range(int begin, int end) { return tokens(begin, end - begin); }

/// One text of one layer and KV head, read as a prompt into host memory, of which the tokens from
/// `begin` on are near.
class SplitText {
 public:
  SplitText(const MagicPigData& data, int begin)
      : spec_(spec_of(data, begin)),
        begin_(begin),
        arena_(plan_of(spec_)),
        whole_(spec_.whole, arena_),
        keys_(spec_, whole_, arena_, {}),
        slot_(whole_.acquire()) {
    const int n = static_cast<int>(data.n);
    keys_.acquire(slot_);
    whole_.reserve(slot_, n);
    keys_.hold_prompt(slot_, n);
    keys_.begin_layer(0, slot_, 0);
    for (int token = 0; token < n; ++token)
      for (const auto& [pool, from] : {std::pair{keys_.prompt().k(0), data.k.data()},
                                       std::pair{keys_.prompt().v(0), data.v.data()}})
        for (size_t c = 0; c < data.d; ++c)
          pool.as<float>()[row(keys_.prompt(), token) * data.d + c] =
              static_cast<float>(from[static_cast<size_t>(token) * data.d + c]);
    const std::vector<kv::HostedKeys::Rows> step[] = {{{slot_, 0, n}}};
    keys_.end_layer(0, step);
    whole_.set_length(slot_, n);
    keys_.wrote_far(slot_);
    keys_.hold_split(slot_, begin);
  }

  int slot() const { return slot_; }
  const kv::PagedStore& far() const { return keys_.far(); }
  /// The keys as they lie in host memory.
  Doubles far_keys() const {
    const auto d = static_cast<size_t>(spec_.whole.head_dim);
    Doubles all;
    std::vector<float> key(d);
    const kv::KeyRows rows(far().k(0), far().pages(slot_).data(), 0);
    for (int token = 0; token < far().length(slot_); ++token) {
      rows.read(token, key.data());
      all.insert(all.end(), key.begin(), key.end());
    }
    return all;
  }
  /// Attention over what is near, as of a row that follows the text and has no key.
  HeadState attend_near(std::vector<float> q) {
    const kv::PagedStore& near = keys_.near();
    const int d = spec_.whole.head_dim, max_pages = spec_.whole.max_pages;
    const int32_t slot = slot_, row_begin[] = {0, 1}, length = far().length(slot_), begin = begin_;
    const uint64_t no_path = 0;
    std::vector<int32_t> pages(near.pages(slot_).begin(), near.pages(slot_).end());
    pages.resize(static_cast<size_t>(max_pages), -1);
    const AttentionBounds bounds{.max_seqs = 1,
                                 .max_rows = 1,
                                 .max_tokens = max_pages * kPageTokens,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .head_dim = d};
    MemoryPlan plan;
    plan.add("workspace", ops::attention_workspace_bytes({}, bounds));
    Arena arena(plan);
    HeadState s{std::vector<float>(q.size(), NAN), NAN};
    float lse = NAN;
    ops::attention({.out = Tensor(s.o.data(), DType::f32, {1, 1, d}),
                    .lse = &lse,
                    .q = Tensor(q.data(), DType::f32, {1, 1, d}),
                    .k = near.k(0),
                    .v = near.v(0),
                    .step = {.n_seqs = 1,
                             .n_rows = 1,
                             .max_rows_a_seq = 1,
                             .max_pages = max_pages,
                             .mask_words = 1,
                             .slot = &slot,
                             .row_begin = row_begin,
                             .base = &length,
                             .pos = &length,
                             .page_table = pages.data(),
                             .tree_mask = &no_path},
                    .key_hi = std::numeric_limits<int32_t>::max(),
                    .seq_key_lo = &begin,
                    .scale = 1.0f / std::sqrt(static_cast<float>(d))},
                   ops::attention_workspace({}, bounds, arena.take("workspace")));
    s.lse = lse;
    return s;
  }

 private:
  static kv::HostedKeys::Spec spec_of(const MagicPigData& data, int begin) {
    const int n = static_cast<int>(data.n), pages = (n + kPageTokens - 1) / kPageTokens;
    return {.layers = {0},
            .whole = {.n_layers = 1,
                      .layers = std::vector<int>{},
                      .n_kv_heads = 1,
                      .head_dim = static_cast<int>(data.d),
                      .dtype = DType::f32,
                      .n_pages = pages,
                      .max_slots = 1,
                      .max_pages = pages},
            .near_tokens = n - begin,
            .prompt_tokens = n};
  }
  static MemoryPlan plan_of(const kv::HostedKeys::Spec& spec) {
    MemoryPlan plan;
    kv::PagedStore::plan(spec.whole, plan);
    kv::HostedKeys::plan(spec, plan);
    return plan;
  }
  size_t row(const kv::PagedStore& store, int token) const {
    return static_cast<size_t>(store.page(slot_, token / kPageTokens) * kPageTokens +
                               token % kPageTokens);
  }

  kv::HostedKeys::Spec spec_;
  int begin_;
  Arena arena_;
  kv::PagedStore whole_;
  kv::HostedKeys keys_;
  int slot_;
};

/// Sinks, and a sample whose projections the test gives.
class SampleSelector final : public kv::KeySelector {
 public:
  SampleSelector(const LshHead& head, Ids sinks, std::vector<float> log_u, double q_center)
      : head_(head), sinks_(std::move(sinks)), log_u_(std::move(log_u)), q_center_(q_center) {}

  size_t scratch_bytes() const override { return 64; }
  std::span<const float> log_u() const override { return log_u_; }
  void select_keys(const kv::KeyQuery& query, std::byte*,
                   std::span<kv::KeyList> lists) const override {
    REQUIRE(lists.size() == 1);
    const auto* q = static_cast<const float*>(query.q);
    const auto d = static_cast<size_t>(query.keys.head_dim());
    sample = head_.sample({q, q + d});
    double square = 0;
    for (size_t c = 0; c < d; ++c) square += double{q[c]} * q[c];
    lists[0].segments.push_back({sinks_.data(), static_cast<int>(sinks_.size()), nullptr, nullptr});
    lists[0].segments.push_back(
        {sample.data(), static_cast<int>(sample.size()), nullptr, head_.norms()});
    lists[0].n_static = static_cast<int>(sinks_.size());
    lists[0].q_norm = static_cast<float>(std::sqrt(square));
    lists[0].q_center = static_cast<float>(q_center_);
  }

  mutable Ids sample;  // of the last query

 private:
  const LshHead& head_;
  Ids sinks_;
  std::vector<float> log_u_;
  double q_center_;
};

/// What the CPU makes of one row's list over far keys.
HeadState attend_far(const SplitText& text, const SampleSelector& selector, std::vector<float> q) {
  const int d = static_cast<int>(q.size());
  const kv::ListAttention::Spec spec{.geometry = {.n_layers = 1,
                                                  .n_heads = 1,
                                                  .n_kv_heads = 1,
                                                  .head_dim = d,
                                                  .dtype = DType::f32},
                                     .scratch_bytes = selector.scratch_bytes(),
                                     .drafted = {}};
  MemoryPlan plan;
  kv::ListAttention::plan(spec, plan);
  Arena arena(plan);
  kv::ListAttention lists(spec, arena);
  kv::Step step;
  step.n_seqs = step.n_rows = 1;
  step.row_begin = {0, 1};
  step.slot = {text.slot()};
  step.base = step.pos = {text.far().length(text.slot())};
  HeadState s{std::vector<float>(q.size(), NAN), NAN};
  float lse = NAN;
  kv::KeyUsage usage;
  lists.run({.selector = selector,
             .layer = 0,
             .step = step,
             .store = text.far(),
             .q = Tensor(q.data(), DType::f32, {1, 1, d}),
             .o = s.o.data(),
             .lse = &lse},
            usage);
  s.lse = lse;
  return s;
}

void check_state(const HeadState& got, double lse, const double (&o)[4]) {
  CHECK(std::abs(got.lse - lse) <= 1e-5);
  for (size_t c = 0; c < 4; ++c) CHECK(std::abs(got.o[c] - o[c]) <= 1e-5 * std::abs(o[c]));
}

/// Tokens of the reference data, and beyond them some that no query sees.
TokenData tokens_of(const MagicPigData& data) {
  return [&data](Part part, int32_t token, int, int, float* out) {
    for (size_t c = 0; c < data.d; ++c) {
      const size_t at = static_cast<size_t>(token) * data.d + c;
      const bool shown = static_cast<size_t>(token) < data.n;
      if (part == Part::q)
        out[c] = static_cast<float>(data.q[c]);
      else if (part == Part::k)
        out[c] = static_cast<float>(shown ? data.k[at] : -20 * data.q[c]);
      else
        out[c] = static_cast<float>(shown ? data.v[at] : 0);
    }
  };
}

/// The merged state of a row of one head, and its list.
struct Attended final : kv::AttentionObserver {
  void attended(kv::Cache& cache, int layer, const kv::Step& step, const Tensor& q) override {
    state.o.resize(static_cast<size_t>(q.elements()));
    float lse = NAN;
    cache.attend_as({.keys = 0}, layer, step, q,
                    {.o = state.o.data(),
                     .lse = &lse,
                     .on_list = [&](int, int, const kv::KeyList& list, int32_t) {
                       for (const KeySegment& s : list.segments)
                         chosen.insert(chosen.end(), s.ids, s.ids + s.n);
                     }});
    state.lse = lse;
  }
  HeadState state;
  Ids chosen;  // sinks among them
};

/// The row that follows a prompt of all of the data's tokens and of some that no query sees.
Attended attend(const MagicPigData& data, recipe::Cache cache, CachePlace place, int n_unseen = 1) {
  cache.place = place;
  const int n = static_cast<int>(data.n) + n_unseen;
  PolicyRig rig({.geometry = {.n_layers = 1,
                              .n_heads = 1,
                              .n_kv_heads = 1,
                              .head_dim = static_cast<int>(data.d),
                              .dtype = DType::f32},
                 .max_seqs = 1,
                 .max_tokens = n + 1,
                 .max_rows = n},
                {cache}, tokens_of(data));
  Attended seen;
  rig.cache.observe(&seen);
  rig.extend(rig.sequence(tokens(0, n)), tokens(n, 1));
  return seen;
}

recipe::Cache lsh(int bits, int tables, double u_floor, int sinks, int recent) {
  recipe::Cache c = sparse_cache(recipe::CacheKind::lsh, sinks, recent);
  c.lsh = {.bits = bits, .tables = tables, .min_hits = 2, .u_floor = u_floor};
  return c;
}

}  // namespace

TEST_SUITE("kv/hosted_magicpig") {
  TEST_CASE("the golden vector, sampled and attended in host memory, merged with near keys") {
    const MagicPigData data(256, 16, 7);
    const Doubles center = data.mean_key(4, 244);
    const std::vector<float> q = to_float_vector(data.q);
    const double q_center = dot(data.q.data(), center.data(), 16), shift = q_center / 4;
    SplitText text(data, 244);
    const LshHead head(text.far_keys(), 16, 4, 244, center, magicpig_projections(9000, 16, 40),
                       {4, 10}, isa_in_use());
    struct Golden {
      double floor, lse_s, o_s[4], lse, o[4];
    };
    for (const Golden& g : {Golden{0,
                                   21.242136947386737,
                                   {-5.127278731, 5.064907402, 1.3920352001, 2.6234732831},
                                   23.14217929973469,
                                   {-6.1377790643, 4.882854755, 0.7057268236, 3.9546827797}},
                            Golden{1e-4,
                                   21.242036632371743,
                                   {-5.1272787826, 5.0649074535, 1.3920352266, 2.6234732873},
                                   23.14216429703181,
                                   {-6.1377942324, 4.8828520314, 0.7057165311, 3.9547027522}}}) {
      CAPTURE(g.floor);
      const std::vector<float> log_u = kv::log_u_table(4, 10, 2, g.floor, kIntervals);
      const auto relative = [&](HeadState s) {
        s.lse -= shift;
        return s;
      };
      const SampleSelector alone(head, {}, log_u, q_center);
      check_state(relative(attend_far(text, alone, q)), g.lse_s, g.o_s);
      const Ids& s = alone.sample;
      REQUIRE(s.size() == 56);
      CHECK(Ids(s.begin(), s.begin() + 8) == Ids{7, 11, 24, 27, 45, 46, 47, 52});
      CHECK(Ids(s.end() - 4, s.end()) == Ids{233, 239, 240, 241});
      int64_t sum = 0, squares = 0;
      for (const int64_t id : s) sum += id, squares += id * id;
      CHECK(sum == 7706);
      CHECK(squares == 1338026);
      const SampleSelector with_sinks(head, range(0, 4), log_u, q_center);
      check_state(relative(merge(attend_far(text, with_sinks, q), text.attend_near(q))), g.lse,
                  g.o);
    }
  }

  TEST_CASE("where every key collides, the merged state is exact attention, in either place") {
    const MagicPigData data(256, 16, 7);
    for (const CachePlace place : {CachePlace::device, CachePlace::host}) {
      CAPTURE(recipe::yaml_text(place));
      // The row that asks is not seen.
      const Attended got = attend(data, lsh(1, 200, 0, 4, 12), place, 0);
      CHECK(got.chosen == range(0, 244));
      CHECK(std::abs(got.state.lse - -6.972465503592413) <= 1e-5);
      constexpr double kExact[] = {-6.1382121217, 4.8827043883, .7054005585, 3.9552910013};
      for (size_t c = 0; c < 4; ++c)
        CHECK(std::abs(got.state.o[c] - kExact[c]) <= 1e-5 * std::abs(kExact[c]));
    }
  }

  // Over the draw of the projections sums weighted by 1 / u are unbiased; their quotient and
  // logarithm are not. Each key is in as many samples as its angle says.
  TEST_CASE(
      "2,000 draws of a policy's projections: keys are included as often as u says, and "
      "weighted sums are unbiased") {
    constexpr int kDraws = 2000, kSame = 50;
    const MagicPigData data(64, 16, 11);
    const Doubles center = data.mean_key(0, 64), none(16, 0.0);
    const ExactState exact = exact_attention(data, range(0, 64), none);
    Doubles u;
    const double q_norm = std::sqrt(dot(data.q.data(), data.q.data(), 16));
    for (size_t i = 0; i < 64; ++i) {
      Doubles k(16);
      for (size_t c = 0; c < 16; ++c) k[c] = data.k[i * 16 + c] - center[c];
      u.push_back(kv::inclusion_probability(
          dot(data.q.data(), k.data(), 16) / (q_norm * std::sqrt(dot(k.data(), k.data(), 16))), 4,
          10, 2));
    }
    Mean ratio, lse;
    std::vector<Mean> numerator(16);
    Doubles included(64, 0.0);
    recipe::Cache cache = lsh(4, 10, 0, 0, 1);
    for (int draw = 0; draw < kDraws; ++draw) {
      cache.lsh.seed = draw;
      const Attended got = attend(data, cache, CachePlace::host);
      if (draw < kSame) {
        const Attended one = attend(data, cache, CachePlace::device);
        CHECK(got.chosen == one.chosen);
        CHECK(got.state.o == one.state.o);
        CHECK(got.state.lse == one.state.lse);
      }
      for (const int32_t id : got.chosen) included[static_cast<size_t>(id)] += 1.0 / kDraws;
      const double share = std::exp(got.state.lse - exact.lse);  // 0 for an empty sample
      ratio.add(share);
      if (!got.chosen.empty()) lse.add(got.state.lse - exact.lse);
      for (size_t c = 0; c < 16; ++c) numerator[c].add(share * got.state.o[c]);
    }
    CHECK(std::abs(ratio.mean() - 1) <= 4 * ratio.error());
    CHECK(ratio.error() < 0.004);
    CHECK(lse.mean() < 0);
    CHECK(lse.mean() == doctest::Approx(-0.057).epsilon(0.15));
    for (size_t c = 0; c < 16; ++c) {
      CAPTURE(c);
      CHECK(std::abs(numerator[c].mean() - exact.o[c]) <= 4.5 * numerator[c].error());
    }
    for (size_t i = 0; i < 64; ++i) {
      CAPTURE(i);
      CHECK(std::abs(included[i] - u[i]) <= 4.5 * std::sqrt(u[i] * (1 - u[i]) / kDraws));
    }
  }
}
