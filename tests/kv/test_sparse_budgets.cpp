#include <doctest/doctest.h>

#include "kernels/magicpig_data.h"
#include "kv/log_u.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::HybridTail;

namespace {

constexpr int kKeys = 4096, kDim = 128;

/// One head over the 4,096 keys of the reference data; any other token is out of the query's sight.
class Reference {
 public:
  Reference() : data(kKeys, kDim, 1) {
    std::vector<double> scores(kKeys);
    double top = -1e300;
    for (size_t i = 0; i < kKeys; ++i)
      top = std::max(top, scores[i] = dot(data.q.data(), data.k.data() + i * kDim, kDim) /
                                      std::sqrt(double(kDim)));
    double sum = 0;
    for (const double s : scores) weights.push_back(std::exp(s - top)), sum += weights.back();
    exact.assign(kDim, 0.0);
    for (size_t i = 0; i < kKeys; ++i) {
      weights[i] /= sum;
      for (size_t c = 0; c < kDim; ++c) exact[c] += weights[i] * data.v[i * kDim + c];
    }
  }

  TokenData tokens_of() const {
    return [this](Part part, int32_t token, int, int, float* out) {
      for (size_t c = 0; c < kDim; ++c) {
        const size_t at = static_cast<size_t>(token) * kDim + c;
        if (part == Part::q)
          out[c] = static_cast<float>(data.q[c]);
        else if (token >= kKeys)
          out[c] = part == Part::k ? static_cast<float>(-20 * data.q[c]) : 0;
        else
          out[c] = static_cast<float>(part == Part::k ? data.k[at] : data.v[at]);
      }
    };
  }

  /// Relative error of a policy, and how many keys it chose; means over `seeds`.
  struct Outcome {
    double error = 0, chosen = 0;
  };
  Outcome run(Cache cache, int seeds = 1) const {
    Outcome mean;
    for (int seed = 0; seed < seeds; ++seed) {
      cache.lsh.seed = seed;
      // All keys in the index: no sinks, and the one recent token is out of sight.
      PolicyRig rig({.geometry = {.n_layers = 1,
                                  .n_heads = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = kDim,
                                  .dtype = DType::f32},
                     .max_seqs = 1,
                     .max_tokens = kKeys + 2,
                     .max_rows = kKeys + 1},
                    {cache}, tokens_of());
      const Row o = rig.extend(rig.sequence(tokens(0, kKeys + 1)), tokens(kKeys + 1, 1))[0];
      double error = 0, norm = 0;
      for (size_t c = 0; c < kDim; ++c) {
        error += (o[c] - exact[c]) * (o[c] - exact[c]);
        norm += exact[c] * exact[c];
      }
      mean.error += std::sqrt(error / norm) / seeds;
      mean.chosen += rig.cache.usage(0).selected / seeds;
    }
    return mean;
  }

  MagicPigData data;
  Doubles weights, exact;
};

const Reference& reference() {
  static const Reference r;
  return r;
}

Cache kind_of(CacheKind kind) { return sparse_cache(kind, 0, 1); }

}  // namespace

TEST_SUITE("kv/sparse_budgets") {
  TEST_CASE("errors at given budgets, and who is better") {
    const Reference& r = reference();
    Cache lsh = kind_of(CacheKind::lsh), topk = kind_of(CacheKind::topk);
    const auto lsh_outcome = [&](int bits, int tables, int seeds) {
      lsh.lsh.bits = bits;
      lsh.lsh.tables = tables;
      return r.run(lsh, seeds);
    };
    const auto topk_error = [&](double ratio) {
      topk.topk.ratio = {ratio};
      return r.run(topk).error;
    };
    for (const auto& [ratio, error] : {std::pair{.005, .592},
                                       {.01, .449},
                                       {.02, .331},
                                       {.04, .248},
                                       {.06, .200},
                                       {.10, .143},
                                       {.20, .074},
                                       {.50, .014}}) {
      CAPTURE(ratio);
      CHECK(topk_error(ratio) == doctest::Approx(error).epsilon(0.04));
    }
    const Reference::Outcome wide = lsh_outcome(10, 150, 12), small = lsh_outcome(8, 75, 12);
    // The same keys, and so the same error, wherever they lie.
    lsh.place = recipe::CachePlace::host;
    const Reference::Outcome hosted = lsh_outcome(8, 75, 12);
    CHECK(hosted.error == small.error);
    CHECK(hosted.chosen == small.chosen);
    CHECK(wide.error == doctest::Approx(.1066).epsilon(.15));
    CHECK(wide.chosen / kKeys == doctest::Approx(.0479).epsilon(.15));
    CHECK(small.error == doctest::Approx(.0839).epsilon(.15));
    CHECK(small.chosen / kKeys == doctest::Approx(.0862).epsilon(.15));
    CHECK(wide.error < topk_error(.06));

    CHECK(r.run(streaming(4, 65)).error == doctest::Approx(.758).epsilon(.02));
    Cache quest = kind_of(CacheKind::quest);
    for (const auto& [page, ratio, error] : {std::tuple{16, .05, .538},
                                             {16, .1, .322},
                                             {32, .05, .596},
                                             {32, .1025, .347},
                                             {64, .05, .750},
                                             {64, .1, .505}}) {
      CAPTURE(page);
      CAPTURE(ratio);
      quest.quest = {.page = page, .ratio = {ratio}};
      CHECK(r.run(quest).error == doctest::Approx(error).epsilon(.02));
    }
  }

  TEST_CASE("oracle sampling: the error of theory, and as many different keys") {
    const Reference& r = reference();
    Cache cache = kind_of(CacheKind::oracle_sampling);
    double spread = 0, norm = 0;
    for (size_t c = 0; c < kDim; ++c) {
      double square = 0;
      for (size_t i = 0; i < kKeys; ++i)
        square += r.weights[i] * r.data.v[i * kDim + c] * r.data.v[i * kDim + c];
      spread += square - r.exact[c] * r.exact[c];
      norm += r.exact[c] * r.exact[c];
    }
    for (const int draws : {40, 204, 1228, 4096}) {
      CAPTURE(draws);
      cache.topk.ratio = {std::min(1.0, (draws + 0.5) / (kKeys + 2))};
      const Reference::Outcome o = r.run(cache, 10);
      const double theory = std::sqrt(spread / draws / norm);
      CHECK(o.error <= 1.15 * theory);
      CHECK(o.error >= 0.8 * theory);
      double unique = 0;
      for (const double w : r.weights) unique += -std::expm1(draws * std::log1p(-w));
      CHECK(o.chosen == doctest::Approx(unique).epsilon(.05));
    }
  }

  TEST_CASE("hybrid: exact keys and what stands for the rest beat the exact keys alone") {
    const Reference& r = reference();
    Cache cache = kind_of(CacheKind::hybrid);
    cache.hybrid.exact = {.04};
    cache.hybrid.sample = {.02};
    const auto error = [&](HybridTail tail) {
      cache.hybrid.tail = tail;
      return r.run(cache, 6);
    };
    const Reference::Outcome none = error(HybridTail::none), means = error(HybridTail::means);
    const Reference::Outcome sampled = error(HybridTail::sampled),
                             clusters = error(HybridTail::clusters);
    CHECK(none.chosen == std::lround(.04 * kKeys));
    CHECK(means.chosen == none.chosen);
    CHECK(sampled.chosen == doctest::Approx(none.chosen + .02 * kKeys).epsilon(.15));
    CHECK(means.error < none.error);
    CHECK(clusters.chosen == none.chosen);
    CHECK(clusters.error < means.error);
    CHECK(sampled.error < none.error);
    MESSAGE("relative errors: none ", none.error, ", means ", means.error, ", sampled ",
            sampled.error, ", clusters ", clusters.error);
  }

  TEST_CASE("un-centred keys would not collide") {
    // What the centers are for: the share of keys that a query would find without them.
    const Reference& r = reference();
    double raw = 0;
    for (size_t i = 0; i < kKeys; ++i) {
      const double* k = r.data.k.data() + i * kDim;
      const double cosine =
          dot(r.data.q.data(), k, kDim) /
          std::sqrt(dot(r.data.q.data(), r.data.q.data(), kDim) * dot(k, k, kDim));
      raw += kv::inclusion_probability(cosine, 10, 150, 2) / kKeys;
    }
    CHECK(raw < 1e-4);
  }

  // As many pages as the ratio says.
  TEST_CASE("Quest: pages are taken by bounds that no score exceeds") {
    const TokenData data = cone_data(32);
    Cache cache = sparse_cache(CacheKind::quest, 0, 16);
    for (const int page : {1, 2, 16, 32, 64}) {
      CAPTURE(page);
      cache.quest = {.page = page, .ratio = {0.2}};
      PolicyRig rig({.max_seqs = 1}, {cache}, data);
      const int n = 700, slot = rig.sequence(tokens(0, n)), n_pages = (n - 16) / page;
      Row q(3 * 32), k(32);
      for (int head = 0; head < 3; ++head) data(Part::q, 5000, 1, head, q.data() + head * 32);
      const PolicyRig::Selection chosen = rig.select(slot, n - 1, 1, 1, q);
      CHECK(chosen.inside);
      for (int head = 0; head < 3; ++head) {
        // The bounds, computed here; each is at least the best score of its page.
        std::vector<std::pair<double, int>> bounds;
        for (int p = 0; p < n_pages; ++p) {
          double bound = 0, best = -1e30;
          Doubles lo(32, 1e30), hi(32, -1e30);
          for (int t = p * page; t < (p + 1) * page; ++t) {
            data(Part::k, t, 1, 1, k.data());
            double score = 0;
            for (size_t c = 0; c < 32; ++c) {
              lo[c] = std::min(lo[c], double{k[c]});
              hi[c] = std::max(hi[c], double{k[c]});
              score += double{q[static_cast<size_t>(head) * 32 + c]} * k[c];
            }
            best = std::max(best, score);
          }
          for (size_t c = 0; c < 32; ++c) {
            const double x = q[static_cast<size_t>(head) * 32 + c];
            bound += std::max(x * lo[c], x * hi[c]);
          }
          CHECK(bound >= best - 1e-9);
          bounds.push_back({-bound, p});
        }
        std::sort(bounds.begin(), bounds.end());
        const auto n_read = static_cast<size_t>(std::max(1, static_cast<int>(0.2 * n / page)));
        std::vector<int> want;
        for (size_t i = 0; i < n_read; ++i)
          for (int t = 0; t < page; ++t) want.push_back(bounds[i].second * page + t);
        std::sort(want.begin(), want.end());
        const KeySegment& s = chosen.lists[static_cast<size_t>(head)].segments[0];
        CHECK(std::vector<int>(s.ids, s.ids + s.n) == want);
      }
    }
  }
}
