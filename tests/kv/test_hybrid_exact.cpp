// The keys that the hybrid reads exactly, against a plain reference: of the keys that reach a floor
// by signs the best by all bits, for one head or for those that share a set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kv/policies/hybrid_exact.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;

namespace {

constexpr int kSinks = 4, kRecent = 16;
constexpr float kInf = std::numeric_limits<float>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Codes of a prompt's keys under one KV head, made as the policy makes them, and the scores of a
/// group's queries.
struct CodedPrompt {
  static constexpr int kDim = 64;
  int heads, tokens, n;
  TokenData data = cone_data(kDim, 2.0f);
  PolicyRig::Shape shape;
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
  int64_t stride;
  std::vector<float> scores;  // [heads, stride]

  CodedPrompt(int heads_, int bits, int keys)
      : heads(heads_),
        tokens(keys + kSinks + kRecent),
        n(keys),
        shape{.geometry = {.n_layers = 1,
                           .n_heads = heads,
                           .n_kv_heads = 1,
                           .head_dim = kDim,
                           .dtype = DType::f32},
              .max_seqs = 1,
              .max_tokens = tokens},
        rig(shape, {Cache{}}, data),
        slot(rig.sequence(test::tokens(0, tokens))),
        index({.max_tokens = tokens, .total_tokens = tokens, .sinks = kSinks, .recent = kRecent}),
        bounds{.geometry = shape.geometry, .max_tokens = tokens, .total_tokens = tokens},
        codes({.bits = bits}, 7, bounds, index, {.n_sparse = 1, .n_kv_heads = 1}),
        arena([&] {
          MemoryPlan plan;
          codes.plan(plan, "index");
          return plan;
        }()),
        stride(codes.score_room()),
        scores(at(heads * stride)) {
    codes.allocate(arena, "index");
    const int layers[] = {0};
    const kv::TokenIndex::Work work{.slot = slot,
                                    .length = kSinks + n,
                                    .pieces = index.extend(slot, kSinks + n),
                                    .fresh = true,
                                    .ordinals = {0, 1}};
    codes.index_tokens(work, layers, rig.cache.store(), nullptr, nullptr);
    const kv::CodeFrame frame = codes.frame(slot, 0, 0);
    for (int h = 0; h < heads; ++h) {
      Row q(at(kDim));
      data(Part::q, 9000, 0, h, q.data());
      rotated.emplace_back(codes.dims());
      sums.emplace_back(4 * codes.dims());
      q8.emplace_back(codes.dims());
      queries.push_back(codes.query(frame, q, {.of = kDim}, rotated.back().data(),
                                    sums.back().data(), q8.back().data()));
    }
    codes.scan(slot, 0, 0, queries, scores.data(), stride);
  }
};

/// Plainly: a sort of the sample, ranks key by key, a comparison with the floor, and a sort of the
/// candidates.
struct Plain {
  std::vector<float> references;
  std::vector<int> candidates, set;         // ascending
  std::vector<std::vector<float>> refined;  // of each head, all keys: candidates by all bits
  bool too_few = false;                     // reach the floor

  static float of_sample(const std::vector<float>& scores, int m) {
    const auto n = static_cast<int64_t>(scores.size());
    const int64_t tiles = n / 16, taken = std::min<int64_t>(tiles, 128);
    std::vector<float> sample;
    for (int64_t t = 0; t < taken; ++t)
      for (int64_t i = 0; i < 16; ++i) sample.push_back(scores[at(t * tiles / taken * 16 + i)]);
    std::ranges::sort(sample, std::greater<>());
    return sample[at(taken * 16 * m / n)];
  }
  std::vector<float> ranks(const std::vector<std::vector<float>>& scores) const {
    std::vector<float> to(scores[0].size(), -kInf);
    for (size_t h = 0; h < scores.size(); ++h)
      for (size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], scores[h][i] - references[h]);
    return to;
  }

  Plain(const CodedPrompt& p, int wanted, double refine) {
    std::vector<std::vector<float>> scores;
    for (int h = 0; h < p.heads; ++h) {
      const auto first = p.scores.begin() + h * p.stride;
      scores.emplace_back(first, first + p.n);
      references.push_back(p.heads > 1 ? of_sample(scores.back(), wanted) : 0);
    }
    const std::vector<float> by_signs = ranks(scores);
    const int m = std::max(2 * wanted, static_cast<int>(std::lround(refine * p.n)));
    const float floor = m < p.n ? of_sample(by_signs, m) : -kInf;
    for (int i = 0; i < p.n; ++i)
      if (by_signs[at(i)] >= floor) candidates.push_back(i);
    too_few = static_cast<int>(candidates.size()) <= wanted;
    if (too_few) {
      candidates.resize(at(p.n));
      std::iota(candidates.begin(), candidates.end(), 0);
    }
    refined = std::move(scores);
    if (p.codes.bits() > 1)
      for (int h = 0; h < p.heads; ++h) {
        std::vector<float> listed(candidates.size());
        p.codes.refine(p.slot, 0, 0, p.queries[at(h)], candidates, refined[at(h)].data(),
                       listed.data());
      }
    const std::vector<float> by_all = ranks(refined);
    set = candidates;
    std::ranges::stable_sort(set, [&](int a, int b) { return by_all[at(a)] > by_all[at(b)]; });
    set.resize(at(wanted));
    std::ranges::sort(set);
  }
};

/// Compares the choice with the plain one. Returns that, for what a case is about.
Plain check_choice(CodedPrompt& p, int wanted, double refine) {
  const Plain want(p, wanted, refine);
  const recipe::Hybrid spec{.bits = p.codes.bits(), .refine = {refine}};
  const kv::KeyQuery query{.slot = p.slot, .keys = kv::KeyRows(p.rig.cache.k(0), nullptr, 0)};
  const size_t room = at(p.n) + 16;
  std::vector<float> refined(at(p.heads * p.stride) + 16), ranks(room), select(room), masses(room);
  std::vector<int32_t> ids(room), found(room);
  std::vector<kv::KeyList> lists(at(p.heads));
  std::vector<kv::ExactKeys> exact(at(p.heads));
  kv::choose_exact({.spec = spec,
                    .codes = p.codes,
                    .query = query,
                    .ordinal = 0,
                    .queries = p.queries,
                    .scores = p.scores.data(),
                    .stride = p.stride,
                    .n = p.n,
                    .wanted = wanted,
                    .first_id = kSinks,
                    .ids = ids.data(),
                    .candidates = found.data(),
                    .refined = refined.data(),
                    .ranks = ranks.data(),
                    .select = select.data(),
                    .masses = masses.data()},
                   lists, exact);
  for (int h = 0; h < p.heads; ++h) {
    REQUIRE(lists[at(h)].segments.size() == 1);
    const KeySegment& s = lists[at(h)].segments[0];
    REQUIRE(s.n == wanted);
    CHECK(lists[at(h)].n_before == (h > 0 ? wanted : 0));
    for (int i = 0; i < wanted; ++i) REQUIRE(s.ids[i] == want.set[at(i)] + kSinks);
    float most = -kInf;
    for (int i = 0; i < p.n; ++i) {
      const float score = p.scores[at(h * p.stride + i)];
      const bool read = std::ranges::binary_search(want.set, i);
      REQUIRE(score == (read ? -kInf : want.refined[at(h)][at(i)]));
      if (std::ranges::binary_search(want.candidates, i)) most = std::max(most, score);
    }
    // Rounded once more than the ranks.
    CHECK(most <= exact[at(h)].threshold + 1e-5f * std::abs(exact[at(h)].threshold));
  }
  return want;
}

}  // namespace

TEST_SUITE("kv/hybrid_exact") {
  TEST_CASE("the set is that of a plain reference, for a head and for several") {
    for (const int heads : {1, 2, 3, 4, 7})
      for (const int bits : {1, 3})
        for (const int n : {880, 65 + 64, 2500}) {
          CAPTURE(heads);
          CAPTURE(bits);
          CAPTURE(n);
          CodedPrompt p(heads, bits, n);
          const int wanted = n / 11, m = 2 * wanted;
          const Plain plain = check_choice(p, wanted, 0.06);
          CHECK(!plain.too_few);
          const auto found = static_cast<double>(plain.candidates.size());
          if (n == 880) CHECK(found > m);  // all keys are sampled, and some are equal
          // Four deviations of a sample's share, and what its rounding adds.
          CHECK(std::abs(found - m) <= 4 * std::sqrt(m) + 2);
          MESSAGE(heads << " heads, " << bits << " bits: " << found << " candidates, m " << m);
        }
  }

  TEST_CASE("all keys are candidates where as many are to be refined") {
    for (const int heads : {1, 3})
      for (const double refine : {0.06, 1.0}) {
        CodedPrompt p(heads, 3, 150);
        const int wanted = refine < 1 ? 75 : 20;
        CHECK(check_choice(p, wanted, refine).candidates.size() == 150);
      }
  }

  TEST_CASE("keys with equal scores") {
    for (const int heads : {1, 3})
      for (const int n : {80, 1000, 3000}) {
        CodedPrompt p(heads, 1, n);
        std::ranges::fill(p.scores, -0.75f);
        const Plain plain = check_choice(p, n / 20, 0.2);
        CHECK(plain.candidates.size() == at(n));
        CHECK(plain.set.back() == n / 20 - 1);
      }
  }

  TEST_CASE("a floor that too few keys reach") {
    for (const int heads : {1, 3}) {
      constexpr int kKeys = 16 * 600, kTiles = kKeys / 16;
      CodedPrompt p(heads, 1, kKeys);
      // All that is good lies where samples are taken.
      for (int t = 0; t < 128; ++t)
        for (int i = 0; i < 16; ++i)
          for (int h = 0; h < heads; ++h)
            p.scores[at(h * p.stride + t * kTiles / 128 * 16 + i)] += 1000;
      const Plain plain = check_choice(p, kKeys / 20, 0.2);
      CHECK(plain.too_few);
    }
  }
}
