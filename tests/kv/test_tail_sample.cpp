#include <doctest/doctest.h>

#include "base/convert.h"
#include "kv/log_u.h"
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

Cache hybrid(double sample) {
  Cache c = sparse_cache(CacheKind::hybrid, kSinks, kRecent);
  c.hybrid.bits = 2;
  c.hybrid.sample = {sample};
  c.hybrid.tail = HybridTail::sampled;
  return c;
}

/// Adds one estimate of a head's sums from its list and means, sinks left out; returns the keys of
/// the tail.
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
  const float* mass = list.tail.masses;
  for (const MeanRows& rows : list.tail.rows)
    for (int i = 0; i < rows.n; ++i, ++mass) {
      const double weight = *mass * std::exp(double{list.tail.origin});
      sum += weight;
      sum_value += weight * to_float(rows.means[i * kDim + 3]);
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
  TEST_CASE("hybrid: over positions, exact keys, means and sample give unbiased sums") {
    constexpr int kDraws = 3000;
    for (const double share : {0.05, 0.3}) {
      CAPTURE(share);
      const Cache cache = hybrid(share);
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

  TEST_CASE("hybrid, budget error: sums stay within the error that lists report") {
    constexpr int kDraws = 1500;
    double keys_before = 0;
    for (const auto& [bits, error] :
         {std::pair{1, 0.2}, {1, 0.1}, {3, 0.2}, {3, 0.03}, {3, 0.01}}) {
      CAPTURE(bits);
      CAPTURE(error);
      Cache cache = hybrid(1.0);
      cache.hybrid.bits = bits;
      cache.hybrid.refine = {0.2};
      cache.hybrid.budget = recipe::HybridBudget::error;
      cache.hybrid.error = error;
      PolicyRig rig(one_group(2000), {cache}, kCone);
      const int slot = rig.sequence(tokens(0, kTokens));
      const Exact head(0);
      int outside = 0;
      Mean keys, reported;
      for (int position = kTokens; position < kTokens + kDraws; ++position) {
        const PolicyRig::Selection s = rig.select(slot, position, 0, 0, head.q);
        Mean denominator, numerator;
        keys.add(estimate(s.lists[0], head, cache, denominator, numerator));
        REQUIRE(s.lists[0].error >= 0);
        reported.add(s.lists[0].error);
        outside += std::abs(denominator.mean() / head.denominator - 1) > s.lists[0].error + 1e-5;
      }
      CHECK(outside <= 0.05 * kDraws);
      CHECK(reported.mean() <= 1.25 * error);
      if (error < 0.2) CHECK(keys.mean() >= keys_before);
      keys_before = keys.mean();
    }
  }

  TEST_CASE("hybrid, budget mass: the exact keys hold the share that was asked for") {
    int before = 0;
    for (const double mass : {0.3, 0.6, 0.9}) {
      CAPTURE(mass);
      Cache cache = sparse_cache(CacheKind::hybrid, kSinks, kRecent);
      cache.hybrid.exact = {0.9};
      cache.hybrid.refine = {1.0};
      cache.hybrid.budget = recipe::HybridBudget::mass;
      cache.hybrid.mass = mass;
      PolicyRig rig(one_group(), {cache}, kCone);
      const int slot = rig.sequence(tokens(0, kTokens));
      const Exact head(0);
      const PolicyRig::Selection s = rig.select(slot, kTokens, 0, 0, head.q);
      const KeySegment& exact = s.lists[0].segments[1];
      double held = 0;
      for (int i = 0; i < exact.n; ++i) held += head.weight[static_cast<size_t>(exact.ids[i])];
      CHECK(held / head.denominator >= mass - 0.05);
      CHECK(exact.n >= recipe::Hybrid::kLeastExact);
      CHECK(exact.n <= std::lround(0.9 * (kEnd - kSinks)));
      CHECK(exact.n >= before);
      before = exact.n;
    }
    CHECK(before > recipe::Hybrid::kLeastExact);
  }

  TEST_CASE("lsh: over seeds, unbiased sums") {
    constexpr int kSeeds = 400;
    Cache cache = sparse_cache(CacheKind::lsh, kSinks, kRecent);
    cache.lsh = {.bits = 4, .tables = 10, .u_floor = 0};
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

  TEST_CASE("draws differ between positions, layers and KV heads, and repeat") {
    const Cache cache = hybrid(0.05);
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
