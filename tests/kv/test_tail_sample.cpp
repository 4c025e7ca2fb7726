#include <doctest/doctest.h>

#include "kv/log_u.h"
#include "kv/policies/tail_sample.h"
#include "mean.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::HybridTail;

namespace {

constexpr double kRounding = 1e-5;  // of sums in f32
constexpr int kTokens = 600, kDim = 32, kSinks = 4, kRecent = 16, kEnd = kTokens - kRecent;
const TokenData kCone = cone_data(kDim, 2.0f);

PolicyRig::Shape one_group(int max_tokens = kTokens) {
  return {.geometry =
              {.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .head_dim = kDim, .dtype = DType::f32},
          .max_seqs = 1,
          .max_tokens = max_tokens};
}

/// Exact weights of the dynamic keys for one query head, and one channel of their values.
struct Exact {
  Row q = Row(2 * kDim);
  std::vector<double> weight, value;
  double denominator = 0, numerator = 0;

  explicit Exact(int head) {
    for (int h = 0; h < 2; ++h) kCone(Part::q, 9000, 0, h, q.data() + h * kDim);
    Row k(kDim), v(kDim);
    for (int t = 0; t < kEnd; ++t) {
      kCone(Part::k, t, 0, 0, k.data());
      kCone(Part::v, t, 0, 0, v.data());
      double score = 0;
      for (int c = 0; c < kDim; ++c)
        score += double{q[static_cast<size_t>(head * kDim + c)]} * k[static_cast<size_t>(c)];
      weight.push_back(t < kSinks ? 0 : std::exp(score / std::sqrt(double(kDim))));
      value.push_back(v[3]);
      denominator += weight.back();
      numerator += weight.back() * value.back();
    }
  }
};

Cache hybrid(HybridTail tail, double exact, double sample) {
  Cache c = sparse_cache(CacheKind::hybrid, kSinks, kRecent);
  c.hybrid.bits = 128;
  c.hybrid.exact = {exact};
  c.hybrid.sample = {sample};
  c.hybrid.tail = tail;
  c.lsh = {.bits = 4, .tables = 10, .u_floor = 0};
  return c;
}

/// Adds one estimate of a head's sums from its list, sinks left out; returns the keys of the tail.
int estimate(const kv::KeyList& list, const Exact& exact, const Cache& cache, Mean& denominator,
             Mean& numerator) {
  double sum = 0, sum_value = 0;
  for (size_t i = 1; i < list.segments.size(); ++i)
    for (int j = 0; j < list.segments[i].n; ++j) {
      const KeySegment& s = list.segments[i];
      const auto id = static_cast<size_t>(s.ids[j]);
      double weight = exact.weight[id];
      if (s.bias != nullptr) weight *= std::exp(s.bias[j]);
      if (s.norms != nullptr) {
        const double product =
            std::log(exact.weight[id]) * std::sqrt(double(kDim)) - double{list.q_center};
        weight /= kv::inclusion_probability(product / (double{list.q_norm} * s.norms[id]),
                                            cache.lsh.bits, cache.lsh.tables, cache.lsh.min_hits);
      }
      sum += weight;
      sum_value += weight * exact.value[id];
    }
  denominator.add(sum);
  numerator.add(sum_value);
  int tail = 0;
  const size_t first = cache.kind == CacheKind::lsh ? 1 : 2;
  for (size_t i = first; i < list.segments.size(); ++i) tail += list.segments[i].n;
  return tail;
}

}  // namespace

TEST_SUITE("kv/tail_sample") {
  TEST_CASE("lists without the keys already taken") {
    std::vector<int32_t> ids = {1, 3, 3, 7, 9, 12};
    std::vector<float> bias = {1, 2, 3, 4, 5, 6};
    const std::vector<int32_t> taken = {0, 3, 9, 30};
    CHECK(kv::drop_excluded(ids.data(), bias.data(), 6, taken) == 3);
    CHECK(std::vector<int32_t>(ids.begin(), ids.begin() + 3) == std::vector<int32_t>{1, 7, 12});
    CHECK(std::vector<float>(bias.begin(), bias.begin() + 3) == std::vector<float>{1, 4, 6});
    CHECK(kv::drop_excluded(ids.data(), nullptr, 3, {}) == 3);
    CHECK(kv::drop_excluded(ids.data(), nullptr, 0, taken) == 0);
    CHECK(kv::drop_excluded(ids.data(), nullptr, 3, std::vector<int32_t>{1, 7, 12}) == 0);
  }

  TEST_CASE("uniform: each key with the same probability, runs that divide nothing included") {
    constexpr int kN = 53;
    for (const double stratum : {1.0, 1.5, 4.0, 7.3, 53.0, 200.0}) {
      CAPTURE(stratum);
      std::vector<Mean> times(kN);
      for (uint64_t key = 0; key < 20000; ++key) {
        std::vector<int32_t> ids(kN + 1);
        std::vector<float> bias(kN + 1);
        const int n = kv::sample_uniform(kN, 10, stratum, key, ids.data(), bias.data());
        std::vector<int> count(kN);
        for (int i = 0; i < n; ++i) {
          ++count[static_cast<size_t>(ids[static_cast<size_t>(i)] - 10)];
          REQUIRE(bias[static_cast<size_t>(i)] == static_cast<float>(std::log(stratum)));
          if (i > 0) REQUIRE(ids[static_cast<size_t>(i)] >= ids[static_cast<size_t>(i - 1)]);
        }
        for (size_t i = 0; i < kN; ++i) times[i].add(count[i]);
      }
      for (size_t i = 0; i < kN; ++i) {
        CAPTURE(i);
        CHECK(times[i].is(1 / stratum, kRounding));
      }
    }
  }

  TEST_CASE("hybrid: over positions, exact keys and weighted sample give unbiased sums") {
    constexpr int kDraws = 3000;
    for (const auto& [tail, exact_share, share] : {std::tuple{HybridTail::weighted, 0.05, 0.05},
                                                   {HybridTail::weighted, 0.0, 0.1},
                                                   {HybridTail::uniform, 0.05, 0.05},
                                                   {HybridTail::uniform, 0.0, 0.37}}) {
      CAPTURE(static_cast<int>(tail));
      CAPTURE(share);
      const Cache cache = hybrid(tail, exact_share, share);
      PolicyRig rig(one_group(), {cache}, kCone);
      const int slot = rig.sequence(tokens(0, kTokens));
      const Exact heads[] = {Exact(0), Exact(1)};
      Mean denominator[2], numerator[2], size;
      for (int position = kTokens; position < kTokens + kDraws; ++position) {
        const PolicyRig::Selection s = rig.select(slot, position, 0, 0, heads[0].q);
        for (size_t h = 0; h < 2; ++h)
          size.add(estimate(s.lists[h], heads[h], cache, denominator[h], numerator[h]));
      }
      for (size_t h = 0; h < 2; ++h) {
        CAPTURE(h);
        CHECK(denominator[h].is(heads[h].denominator, kRounding));
        CHECK(numerator[h].is(heads[h].numerator, kRounding));
      }
      CHECK(size.mean() == doctest::Approx(share * (kEnd - kSinks)).epsilon(0.15));
    }
  }

  TEST_CASE("lsh, and as a tail: over seeds, unbiased sums") {
    constexpr int kSeeds = 400;
    Cache plain = hybrid(HybridTail::lsh, 0, 0);
    plain.kind = CacheKind::lsh;
    for (Cache cache : {plain, hybrid(HybridTail::lsh, 0.05, 0)}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      const Exact heads[] = {Exact(0), Exact(1)};
      Mean denominator[2], numerator[2];
      for (int seed = 0; seed < kSeeds; ++seed) {
        cache.lsh.seed = seed;
        PolicyRig rig(one_group(), {cache}, kCone);
        const int slot = rig.sequence(tokens(0, kTokens));
        const PolicyRig::Selection s = rig.select(slot, kTokens, 0, 0, heads[0].q);
        for (size_t h = 0; h < 2; ++h)
          estimate(s.lists[h], heads[h], cache, denominator[h], numerator[h]);
      }
      for (size_t h = 0; h < 2; ++h) {
        CAPTURE(h);
        CHECK(denominator[h].is(heads[h].denominator, kRounding));
        CHECK(numerator[h].is(heads[h].numerator, kRounding));
      }
    }
  }

  TEST_CASE("draws differ between positions, layers and KV heads, and repeat") {
    const Cache cache = hybrid(HybridTail::weighted, 0.02, 0.05);
    PolicyRig rig({.max_seqs = 1}, {cache}, [](Part part, int32_t token, int, int, float* out) {
      kCone(part, token, 0, 0, out);  // the same keys everywhere
    });
    const int slot = rig.sequence(tokens(0, kTokens));
    Row q(3 * kDim);
    for (int h = 0; h < 3; ++h) kCone(Part::q, 9000, 0, 0, q.data() + h * kDim);
    const auto ids = [&](int position, int layer, int kv_head) {
      const PolicyRig::Selection s = rig.select(slot, position, layer, kv_head, q);
      const KeySegment& tail = s.lists[0].segments[2];
      return std::vector<int32_t>(tail.ids, tail.ids + tail.n);
    };
    const std::vector<int32_t> first = ids(700, 0, 0);
    CHECK(first == ids(700, 0, 0));
    CHECK(first != ids(701, 0, 0));
    CHECK(first != ids(700, 1, 0));
    CHECK(first != ids(700, 0, 1));
    // The heads of a group share the draws: equal queries read equal keys.
    const PolicyRig::Selection s = rig.select(slot, 700, 0, 0, q);
    for (const kv::KeyList& list : s.lists)
      CHECK(std::vector<int32_t>(list.segments[2].ids, list.segments[2].ids + list.segments[2].n) ==
            first);
  }
}
