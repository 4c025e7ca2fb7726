// One exact set for the query heads of a KV head (cache.hybrid.group: shared).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
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

}  // namespace

TEST_SUITE("kv/hybrid_shared") {
  TEST_CASE("a group of one head chooses as under head") {
    const TokenData data = cone_data(32, 2.0f);
    for (const HybridTail tail :
         {HybridTail::clusters, HybridTail::means, HybridTail::sampled, HybridTail::none})
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
      return kv::make_policy(hybrid(group, 0.1, tail), bounds)->keys_read(0, kLength).total;
    };
    const int n = kLength - kSinks - kRecent, exact = n / 10, sample = n / 20;
    REQUIRE(n % 20 == 0);
    CHECK(keys(HybridGroup::shared, HybridTail::means) == kLength - n + exact);
    CHECK(keys(HybridGroup::shared, HybridTail::sampled) == kLength - n + exact + 4 * sample);
    CHECK(keys(HybridGroup::head, HybridTail::sampled) == kLength - n + 4 * (exact + sample));
  }
}
