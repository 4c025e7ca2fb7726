#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/convert.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;

namespace {

PolicyRig::Shape one_head(int head_dim, int max_tokens) {
  return {.geometry = {.n_layers = 1,
                       .n_heads = 1,
                       .n_kv_heads = 1,
                       .head_dim = head_dim,
                       .dtype = DType::f32},
          .max_seqs = 1,
          .max_tokens = max_tokens};
}

/// Which of the best keys are among those that a row reads exactly, as a share.
double found(const PolicyRig::Selection& s, const TokenData& data, int head_dim, int n,
             std::set<int>& ids) {
  const auto d = static_cast<size_t>(head_dim);
  Row q(d), k(d);
  data(Part::q, 9000, 0, 0, q.data());
  std::vector<std::pair<double, int>> scores;
  for (int t = 4; t < n - 16; ++t) {
    data(Part::k, t, 0, 0, k.data());
    double score = 0;
    for (size_t c = 0; c < d; ++c) score += double{q[c]} * k[c];
    scores.emplace_back(-score, t);
  }
  std::ranges::sort(scores);
  const KeySegment& exact = s.lists[0].segments[1];
  ids = {exact.ids, exact.ids + exact.n};
  int hits = 0;
  for (int i = 0; i < exact.n; ++i) hits += ids.contains(scores[static_cast<size_t>(i)].second);
  return double(hits) / exact.n;
}

Cache hybrid(int bits, double exact) {
  Cache cache = sparse_cache(CacheKind::hybrid);
  cache.hybrid.bits = bits;
  cache.hybrid.exact = {exact};
  cache.hybrid.refine = {0.2};
  return cache;
}

}  // namespace

TEST_SUITE("kv/hybrid") {
  TEST_CASE("the best keys are found under any width of a head and number of bits") {
    for (const int head_dim : {24, 48, 64, 80, 128})
      for (const int bits : {1, 2, 3}) {
        CAPTURE(head_dim);
        CAPTURE(bits);
        const TokenData data = cone_data(head_dim, 2.0f);
        PolicyRig rig(one_head(head_dim, 1500), {hybrid(bits, 0.06)}, data);
        const int slot = rig.sequence(tokens(0, 1500));
        Row q(static_cast<size_t>(head_dim));
        data(Part::q, 9000, 0, 0, q.data());
        std::set<int> ids;
        const double share = found(rig.select(slot, 1499, 0, 0, q), data, head_dim, 1500, ids);
        CHECK(share >= (bits == 1 ? 0.4 : bits == 2 ? 0.6 : 0.7));
      }
  }

  TEST_CASE("a text of several blocks: keys of each are found") {
    constexpr int kTokens = 33500, kBlock = 32768, kDim = 32;
    const TokenData data = cone_data(kDim, 2.0f);
    Cache cache = hybrid(3, 0.06);
    cache.hybrid.tail = recipe::HybridTail::means;
    PolicyRig rig(one_head(kDim, kTokens), {cache}, data);
    const int slot = rig.sequence(tokens(0, kTokens));
    Row q(kDim);
    data(Part::q, 9000, 0, 0, q.data());
    const PolicyRig::Selection s = rig.select(slot, kTokens - 1, 0, 0, q);
    std::set<int> ids;
    CHECK(found(s, data, kDim, kTokens, ids) >= 0.7);
    CHECK(*ids.begin() < 1000);
    CHECK(*ids.rbegin() >= 4 + kBlock);
    // Means of both blocks: a run for every 256 tokens, the last one in part.
    REQUIRE(s.lists[0].tail.rows.size() == 2);
    CHECK(s.lists[0].tail.rows[0].n == kBlock / kMeanKeys);
    CHECK(s.lists[0].tail.rows[1].n == (kTokens - 20 - kBlock + kMeanKeys - 1) / kMeanKeys);
  }

  TEST_CASE("clusters hold keys of one value, and together the weight that runs hold") {
    constexpr int kTokens = 3000, kDim = 32, kKinds = 8;
    const TokenData cone = cone_data(kDim, 2.0f);
    const auto kind = [&](int t, float* out) {
      for (int c = 0; c < kDim; ++c) out[c] = static_cast<float>((t % kKinds * (c + 3)) % 11 - 5);
    };
    const TokenData data = [&](Part part, int32_t t, int layer, int head, float* out) {
      part == Part::v ? kind(t, out) : cone(part, t, layer, head, out);
    };
    Cache clusters = hybrid(3, 0.06), runs = clusters;
    clusters.hybrid.tail = recipe::HybridTail::clusters;
    PolicyRig::Shape shape = one_head(kDim, kTokens);
    shape.max_seqs = 4;
    PolicyRig rig(shape, {clusters, runs}, data);
    Row q(kDim);
    data(Part::q, 9000, 0, 0, q.data());
    const auto check = [&](int slot, int other, int n) {
      const PolicyRig::Selection s = rig.select(slot, n - 1, 0, 0, q),
                                 r = rig.select(other, n - 1, 0, 0, q);
      const kv::TailMeans& tail = s.lists[0].tail;
      REQUIRE(tail.rows.size() == 1);
      double sum = 0, of_runs = 0;
      for (int i = 0; i < tail.rows[0].n; ++i) {
        sum += tail.masses[i];
        if (tail.masses[i] == 0) continue;
        bool pure = false;
        Row value(kDim);
        for (int t = 0; t < kKinds && !pure; ++t) {
          kind(t, value.data());
          pure = true;
          for (int c = 0; c < kDim; ++c)
            pure =
                pure && value[static_cast<size_t>(c)] == to_float(tail.rows[0].means[i * kDim + c]);
        }
        CHECK(pure);
      }
      const float* mass = r.lists[0].tail.masses;
      for (const MeanRows& rows : r.lists[0].tail.rows)
        for (int i = 0; i < rows.n; ++i) of_runs += *mass++;
      CHECK(of_runs > 0);
      CHECK(sum == doctest::Approx(of_runs).epsilon(1e-4));
      CHECK(tail.origin == r.lists[0].tail.origin);
    };
    const int slot = rig.sequence(tokens(0, 1500), 0), other = rig.sequence(tokens(0, 1500), 1);
    check(slot, other, 1500);
    const int fork = rig.cache.fork(slot, 0), other_fork = rig.cache.fork(other, 1);
    rig.prefill(fork, tokens(1500, 1400));
    rig.prefill(other_fork, tokens(1500, 1400));
    check(fork, other_fork, 2900);
    check(slot, other, 1500);
  }

  TEST_CASE("a short beginning does not decide how a long text is coded") {
    const TokenData data = cone_data(32, 2.0f);
    for (const int beginning : {1, 20, 21, 22, 40}) {
      CAPTURE(beginning);
      PolicyRig rig(one_head(32, 2000), {hybrid(3, 0.06)}, data);
      const int slot = rig.sequence(tokens(0, beginning));
      rig.prefill(slot, tokens(beginning, 2000 - beginning));
      Row q(32);
      data(Part::q, 9000, 0, 0, q.data());
      std::set<int> ids;
      CHECK(found(rig.select(slot, 1999, 0, 0, q), data, 32, 2000, ids) >= 0.7);
    }
  }
}
