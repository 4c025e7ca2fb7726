// One exact set for the query heads of a KV head (cache.hybrid.group: shared).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/parallel.h"
#include "kv/policies/hybrid_exact.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::HybridBudget;
using recipe::HybridGroup;
using recipe::HybridTail;

namespace {

constexpr int kSinks = 4, kRecent = 16;
constexpr float kInf = std::numeric_limits<float>::infinity();

Cache hybrid(HybridGroup group, double exact = 0.1, HybridTail tail = HybridTail::means) {
  Cache c = sparse_cache(CacheKind::hybrid, kSinks, kRecent);
  c.hybrid.group = group;
  c.hybrid.exact = {exact};
  c.hybrid.sample = {0.05};
  c.hybrid.tail = tail;
  return c;
}

PolicyRig::Shape one_group(int heads, int head_dim, int max_tokens) {
  return {.geometry = {.n_layers = 1,
                       .n_heads = heads,
                       .n_kv_heads = 1,
                       .head_dim = head_dim,
                       .dtype = DType::f32},
          .max_seqs = 1,
          .max_tokens = max_tokens};
}

Row group_query(const TokenData& data, int heads, int head_dim) {
  Row q(static_cast<size_t>(heads * head_dim));
  for (int h = 0; h < heads; ++h) data(Part::q, 9000, 0, h, q.data() + h * head_dim);
  return q;
}

/// The m keys of the highest values, of equal ones the first, ascending.
std::vector<int> best(const std::vector<float>& values, const std::vector<int>& of, int m) {
  std::vector<int> keys = of;
  std::ranges::stable_sort(keys, [&](int a, int b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  keys.resize(static_cast<size_t>(m));
  std::ranges::sort(keys);
  return keys;
}

/// Codes of a prompt's keys under one KV head, made as the policy makes them, and the scores of a
/// group's queries.
struct CodedPrompt {
  static constexpr int kTokens = 900, kDim = 64;
  int heads, n = kTokens - kSinks - kRecent;
  PolicyRig::Shape shape;
  TokenData data = cone_data(kDim, 2.0f);
  PolicyRig rig;
  int slot;
  kv::TokenIndex index;
  kv::Bounds bounds;
  kv::KeyCodes codes;
  Arena arena;
  std::vector<std::vector<float>> rotated;
  std::vector<std::vector<uint8_t>> sums;
  std::vector<std::vector<int8_t>> q8;
  std::vector<CodeQuery> queries;
  std::vector<float> scores;
  int64_t stride;

  CodedPrompt(int heads_, int bits)
      : heads(heads_),
        shape(one_group(heads_, kDim, kTokens)),
        rig(shape, {Cache{}}, data),
        slot(rig.sequence(tokens(0, kTokens))),
        index({.max_tokens = kTokens, .total_tokens = kTokens, .sinks = kSinks, .recent = kRecent}),
        bounds{.geometry = shape.geometry, .max_tokens = kTokens, .total_tokens = kTokens},
        codes(bits, 7, bounds, index, {.n_sparse = 1, .n_kv_heads = 1}),
        arena([&] {
          MemoryPlan plan;
          codes.plan(plan, "index");
          return plan;
        }()),
        stride(codes.score_room()) {
    codes.allocate(arena, "index");
    const int layers[] = {0};
    codes.index_tokens(slot, index.extend(slot, kSinks + n), layers, true, rig.cache.store(),
                       nullptr, nullptr);
    const kv::CodeFrame frame = codes.frame(slot, 0, 0);
    const Row q = group_query(data, heads, kDim);
    for (int h = 0; h < heads; ++h) {
      rotated.emplace_back(codes.dims());
      sums.emplace_back(4 * codes.dims());
      q8.emplace_back(codes.dims());
      queries.push_back(codes.query(frame, {q.data() + h * kDim, static_cast<size_t>(kDim)},
                                    rotated.back().data(), sums.back().data(), q8.back().data()));
    }
    scores.resize(static_cast<size_t>(heads * stride));
    codes.scan(slot, 0, 0, queries, scores.data(), stride);
  }

  /// Of a head, copied.
  std::vector<float> of_head(int h) const {
    const auto first = scores.begin() + h * stride;
    return {first, first + n};
  }
};

}  // namespace

TEST_SUITE("kv/hybrid_shared") {
  TEST_CASE("the shared set is that of a plain reference") {
    for (const int heads : {2, 3, 4, 7})
      for (const int bits : {1, 3}) {
        CAPTURE(heads);
        CAPTURE(bits);
        CodedPrompt p(heads, bits);
        const int n = p.n, wanted = 80, candidates = 160;
        // Plainly: references by sorting a sample, ranks key by key, two selections.
        std::vector<int> all(static_cast<size_t>(n));
        std::iota(all.begin(), all.end(), 0);
        std::vector<float> references, ranks(all.size(), -kInf);
        for (int h = 0; h < heads; ++h) {
          const std::vector<float> scores = p.of_head(h);
          // Fewer keys than 128 tiles of 16: the sample is all whole tiles.
          std::vector<float> sample(scores.begin(), scores.begin() + n / 16 * 16);
          std::ranges::sort(sample, std::greater<>());
          references.push_back(sample[sample.size() * wanted / static_cast<size_t>(n)]);
          for (const int i : all) {
            const auto at = static_cast<size_t>(i);
            ranks[at] = std::max(ranks[at], scores[at] - references.back());
          }
        }
        const std::vector<int> keys = best(ranks, all, candidates);
        std::vector<std::vector<float>> refined;
        for (const int i : keys) ranks[static_cast<size_t>(i)] = -kInf;
        for (int h = 0; h < heads; ++h) {
          refined.push_back(p.of_head(h));
          std::vector<float> listed(keys.size());
          if (bits > 1)
            p.codes.refine(p.slot, 0, 0, p.queries[static_cast<size_t>(h)], keys,
                           refined.back().data(), listed.data());
          for (const int i : keys) {
            const auto at = static_cast<size_t>(i);
            ranks[at] =
                std::max(ranks[at], refined.back()[at] - references[static_cast<size_t>(h)]);
          }
        }
        const std::vector<int> want = best(ranks, keys, wanted);

        const recipe::Hybrid spec{.bits = bits, .refine = {0.06}};
        const kv::KeyQuery query{.slot = p.slot, .keys = kv::KeyRows(p.rig.cache.k(0), nullptr, 0)};
        const size_t room = static_cast<size_t>(n) + 16;
        std::vector<float> refined_room(static_cast<size_t>(heads * p.stride) + 16), of_group(room),
            select(room), masses(room);
        std::vector<int32_t> ids(room), found(room);
        std::vector<kv::KeyList> lists(static_cast<size_t>(heads));
        std::vector<kv::ExactKeys> exact(static_cast<size_t>(heads));
        kv::choose_exact({.spec = spec,
                          .codes = p.codes,
                          .query = query,
                          .ordinal = 0,
                          .queries = p.queries,
                          .scores = p.scores.data(),
                          .stride = p.stride,
                          .n = n,
                          .wanted = wanted,
                          .first_id = kSinks,
                          .ids = ids.data(),
                          .candidates = found.data(),
                          .refined = refined_room.data(),
                          .ranks = of_group.data(),
                          .select = select.data(),
                          .masses = masses.data()},
                         lists, exact);
        for (int h = 0; h < heads; ++h) {
          const auto at = static_cast<size_t>(h);
          REQUIRE(lists[at].segments.size() == 1);
          const KeySegment& s = lists[at].segments[0];
          REQUIRE(s.n == wanted);
          CHECK(lists[at].n_before == (h > 0 ? wanted : 0));
          float most = -kInf;
          for (int i = 0; i < n; ++i) {
            const float score = p.scores[static_cast<size_t>(h * p.stride + i)];
            const bool read = std::ranges::binary_search(want, i);
            if (read)
              CHECK(score == -kInf);
            else
              CHECK(score == refined[at][static_cast<size_t>(i)]);
            if (std::ranges::binary_search(keys, i)) most = std::max(most, score);
          }
          // Rounded once more than the ranks.
          CHECK(most <= exact[at].threshold + 1e-5f * std::abs(exact[at].threshold));
          for (int i = 0; i < wanted; ++i)
            REQUIRE(s.ids[i] == want[static_cast<size_t>(i)] + kSinks);
        }
      }
  }

  TEST_CASE("a group of one head chooses as under head") {
    const TokenData data = cone_data(32, 2.0f);
    for (const HybridTail tail : {HybridTail::means, HybridTail::sampled, HybridTail::none})
      for (const HybridBudget budget :
           {HybridBudget::share, HybridBudget::mass, HybridBudget::error}) {
        if (budget == HybridBudget::error && tail != HybridTail::sampled) continue;
        const auto run = [&](HybridGroup group) {
          Cache cache = hybrid(group, 0.2, tail);
          cache.hybrid.budget = budget;
          PolicyRig rig(one_group(1, 32, 900), {cache}, data);
          return rig.extend_each(rig.sequence(tokens(0, 800)), tokens(5000, 5));
        };
        CHECK(same(run(HybridGroup::shared), run(HybridGroup::head)));
      }
  }

  TEST_CASE("heads of a group read the same keys; samples are each head's") {
    const TokenData data = cone_data(32, 2.0f);
    for (const HybridTail tail : {HybridTail::means, HybridTail::sampled}) {
      PolicyRig rig(one_group(4, 32, 900), {hybrid(HybridGroup::shared, 0.1, tail)}, data);
      const int slot = rig.sequence(tokens(0, 900));
      const PolicyRig::Selection s = rig.select(slot, 899, 0, 0, group_query(data, 4, 32));
      CHECK(s.inside);
      for (size_t h = 0; h < 4; ++h) {
        const kv::KeyList& list = s.lists[h];
        REQUIRE(list.segments.size() == (tail == HybridTail::sampled ? 3 : 2));
        CHECK(list.segments[1].ids == s.lists[0].segments[1].ids);
        CHECK(list.segments[1].n == 88);  // of 880
        CHECK(list.n_before == (h == 0 ? 0 : kSinks + 88));
        // Masses differ: each head weighs the rest by its own scores.
        if (h > 0) CHECK(list.tail.masses[0] != s.lists[0].tail.masses[0]);
      }
    }
  }

  TEST_CASE("budget mass: as many keys as the head needs that needs most") {
    const TokenData data = cone_data(32, 2.0f);
    Cache cache = hybrid(HybridGroup::shared, 0.5);
    cache.hybrid.budget = HybridBudget::mass;
    int before = 0;
    for (const double mass : {0.2, 0.5, 0.8}) {
      cache.hybrid.mass = mass;
      PolicyRig rig(one_group(4, 32, 900), {cache}, data);
      const int slot = rig.sequence(tokens(0, 900));
      const PolicyRig::Selection s = rig.select(slot, 899, 0, 0, group_query(data, 4, 32));
      const int n = s.lists[0].segments[1].n;
      CHECK(n >= before);
      CHECK(n <= 440);
      before = n;
      if (n == 440) continue;
      // Of each head's true weights the set holds about the share.
      for (size_t h = 0; h < 4; ++h) {
        const Row q = group_query(data, 4, 32);
        Row k(32);
        double all = 0, read = 0;
        const KeySegment& set = s.lists[h].segments[1];
        for (int t = kSinks; t < 900 - kRecent; ++t) {
          data(Part::k, t, 0, 0, k.data());
          double score = 0;
          for (size_t c = 0; c < 32; ++c) score += double{q[h * 32 + c]} * k[c];
          const double weight = std::exp(score / std::sqrt(32.0));
          all += weight;
          if (std::binary_search(set.ids, set.ids + set.n, t)) read += weight;
        }
        CHECK(read >= mass * all * 0.9);
      }
    }
    CHECK(before > recipe::Hybrid::kLeastExact);
  }

  TEST_CASE("a few heads and any number of threads read what one thread reads") {
    const TokenData data = cone_data(32, 2.0f);
    const auto run = [&](int threads) {
      set_threads(threads);
      PolicyRig rig(one_group(4, 32, 900), {hybrid(HybridGroup::shared)}, data);
      return rig.extend_each(rig.sequence(tokens(0, 800)), tokens(5000, 2));
    };
    const int before = max_threads();
    const std::vector<Row> alone = run(1), many = run(8);
    set_threads(before);
    CHECK(same(alone, many));
  }

  TEST_CASE("keys and values of a group are read once") {
    const PolicyRig::Shape shape{};  // six heads on two KV heads
    const auto read = [&](HybridGroup group) {
      PolicyRig rig(shape, {hybrid(group)}, cone_data(32));
      const int slot = rig.sequence(tokens(0, 700));
      const kv::KeyUsage before = rig.cache.usage(0);
      rig.extend(slot, tokens(5000, 1));
      return rig.cache.usage(0).since(before);
    };
    const kv::KeyUsage head = read(HybridGroup::head), shared = read(HybridGroup::shared);
    CHECK(shared.selected == head.selected);
    CHECK(shared.fixed == head.fixed);
    // Two layers of two KV heads, sinks and 68 of the 680 keys between: in f32, keys and values.
    CHECK(shared.key_bytes == 2 * 2 * (kSinks + 68) * 2.0 * 32 * 4 + 2 * 2 * 17 * 2.0 * 32 * 4);
    CHECK(head.key_bytes - shared.key_bytes == 2 * 2 * 2 * (kSinks + 68) * 2.0 * 32 * 4);
    CHECK(shared.index_bytes < head.index_bytes);
  }

  TEST_CASE("plans count what a group shares once, and each head's sample") {
    constexpr int kLength = 900;
    const PolicyRig::Shape shape = one_group(4, 32, kLength);
    const auto keys = [&](HybridGroup group, HybridTail tail) {
      const kv::Bounds bounds{
          .geometry = shape.geometry, .max_tokens = kLength, .total_tokens = kLength};
      return kv::make_policy(hybrid(group, 0.1, tail), bounds)->keys_read(0, kLength);
    };
    const int n = kLength - kSinks - kRecent, exact = n / 10, sample = n / 20;
    REQUIRE(n % 20 == 0);
    CHECK(keys(HybridGroup::shared, HybridTail::means) == kLength - n + exact);
    CHECK(keys(HybridGroup::shared, HybridTail::sampled) == kLength - n + exact + 4 * sample);
    CHECK(keys(HybridGroup::head, HybridTail::sampled) == kLength - n + 4 * (exact + sample));
  }
}
