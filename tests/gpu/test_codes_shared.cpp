// Sets of keys that the heads of a KV head choose together on a GPU.
#include <cmath>

#include "gpu/coded_expected.h"
#include "kernels/code/key_ranks.h"
#include "kernels/selection/select_top.h"
#include "worst.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::test::coded;

namespace {

/// The choice of a KV head's heads together by the CPU's references: ids, and of each head its
/// masses and threshold. Returns whether too few keys' ranks reach the floor.
bool expect_shared(const Case& c, const Choice& got, int slot, int first, int n,
                   std::vector<Expected>& heads) {
  const int group = c.x.group, stride = n + kCodeKeys, kv_head = first % c.n_heads / group;
  const CpuCodes codes = codes_of(c, slot, kv_head);
  std::vector<CodeQuery> queries;
  for (int h = 0; h < group; ++h) {
    const DeviceCodeQuery& query = got.queries[at(first + h)];
    queries.push_back({.sums = nullptr,
                       .q = got.q.data() + int64_t{first + h} * c.dims,
                       .bias = 0,
                       .total = static_cast<int32_t>(query.total),
                       .sign_gain = query.sign_gain,
                       .gain = query.gain,
                       .axis_gain = query.axis_gain});
  }
  std::vector<float> scores(at(int64_t{group} * stride)), ranks(at(n + 16)), scratch(at(n + 16)),
      refined(scores.size());
  code_scan_ref({.scores = scores.data(),
                 .score_stride = stride,
                 .groups = codes.groups.data(),
                 .queries = queries.data(),
                 .n_queries = group,
                 .dims = c.dims},
                {0, n});
  const int wanted = std::min(n, std::max(64, static_cast<int>(std::lround(c.x.exact * n))));
  heads.assign(at(group), {});
  std::vector<int32_t> ids(at(kSinks));
  std::iota(ids.begin(), ids.end(), 0);
  for (Expected& e : heads) e.masses.resize(at(c.n_masses(n)));
  if (wanted == n) {
    ids.resize(at(kSinks + n));
    std::iota(ids.begin(), ids.end(), 0);
    for (Expected& e : heads) e.ids = ids;
    return false;
  }
  std::vector<float> references;
  for (int h = 0; h < group; ++h) {
    references.push_back(sorted_score(scores.data() + h * stride, n, wanted));
    CHECK(got.references[at(first + h)] == references.back());
  }
  const auto rank = [&](const std::vector<float>& of, int m) {
    group_ranks({.ranks = ranks.data(),
                 .scores = of.data(),
                 .stride = stride,
                 .references = references.data(),
                 .n_heads = group,
                 .n = m});
  };
  rank(scores, n);
  const int m = std::min(n, std::max(2 * wanted, static_cast<int>(std::lround(c.x.refine * n))));
  const Candidates candidates(ranks.data(), n, m, wanted);
  const bool too_few = candidates.reach <= wanted;
  if (!too_few) CHECK(got.queries[at(first)].floor == candidates.floor);
  std::vector<bool> below(at(n));  // the floor: such keys count with their own estimates
  for (int i = 0; i < n; ++i) below[at(i)] = ranks[at(i)] < candidates.floor;
  const auto found = static_cast<int>(candidates.keys.size());
  std::vector<int32_t> best(at(n + 16));
  float least = 0;
  for (int h = 0; h < group; ++h) {
    float* of_head = scores.data() + h * stride;
    if (c.x.bits > 1)
      code_refine_ref({.refined = refined.data() + h * stride,
                       .scores = of_head,
                       .keys = candidates.keys.data(),
                       .n = found,
                       .first = 0,
                       .groups = codes.groups.data(),
                       .low = codes.low.data(),
                       .query = &queries[at(h)],
                       .dims = c.dims,
                       .bits = c.x.bits});
    else
      for (int i = 0; i < found; ++i) refined[at(h * stride + i)] = of_head[candidates.keys[at(i)]];
  }
  rank(refined, found);
  select_top_ref({.ids = best.data(),
                  .threshold = &least,
                  .scores = ranks.data(),
                  .n = found,
                  .m = wanted,
                  .first_id = 0,
                  .scratch = scratch.data()});
  std::vector<bool> chosen(at(n));
  for (int i = 0; i < wanted; ++i) {
    const int32_t key = candidates.keys[at(best[at(i)])];
    ids.push_back(kSinks + key);
    chosen[at(key)] = true;
  }
  for (int h = 0; h < group; ++h) {
    Expected& e = heads[at(h)];
    e.ids = ids;
    e.threshold = references[at(h)] + least;
    for (int i = 0; i < n; ++i) {
      const double over = double{scores[at(h * stride + i)]} - e.threshold;
      if (!chosen[at(i)])
        e.masses[at(c.mass_of(slot, kv_head, i))] +=
            std::exp(below[at(i)] ? over : std::min(0.0, over));
    }
  }
  return too_few;
}

/// Checks every list of a case whose heads share sets. Returns how many floors too few keys
/// reached.
int check_shared(const Case& c) {
  const Choice got = choose(c);
  int too_few = 0;
  for (int row = 0; row < c.n_rows + c.x.padding; ++row)
    for (int kv_head = 0; kv_head < c.x.n_kv_heads; ++kv_head) {
      CAPTURE(row);
      CAPTURE(kv_head);
      const int number = row * c.x.n_kv_heads + kv_head, first = number * c.x.group;
      const int slot = row < c.n_rows ? c.slots[at(c.seq_of_row(row))] : -1;
      const int n = slot < 0 ? 0 : c.x.indexed[at(slot)];
      if (n == 0) {
        CHECK(got.count[at(number)] == 0);
        for (int h = 0; h < c.x.group; ++h) CHECK(got.origin[at(first + h)] == -kInf);
        continue;
      }
      std::vector<Expected> heads;
      too_few += expect_shared(c, got, slot, first, n, heads) ? 1 : 0;
      CHECK(got.list(number) == heads[0].ids);
      for (int h = 0; h < c.x.group; ++h) {
        const Expected& e = heads[at(h)];
        double worst = 0, most = 0;
        for (size_t r = 0; r < e.masses.size(); ++r) {
          const double mass = got.masses[at((first + h) * got.mass_stride) + r];
          worst = worse(worst, std::abs(mass - e.masses[r]));
          most = std::max(most, e.masses[r]);
        }
        CHECK(worst <= c.mass_tolerance(n, most));
        if (most > 0)
          CHECK(got.origin[at(first + h)] ==
                doctest::Approx(e.threshold + got.queries[at(first + h)].center));
      }
    }
  return too_few;
}

Setting sharing(Setting s) {
  s.shared = true;
  return s;
}
/// By run and by cluster.
int check_shared(Setting s) {
  s = sharing(s);
  const int too_few = check_shared(Case(s));
  s.by_cluster = true;
  CHECK(check_shared(Case(s)) == too_few);
  return too_few;
}

}  // namespace

TEST_SUITE("gpu/codes_shared") {
  TEST_CASE("choice: from equal codes the CPU's shared sets, in every shape") {
    std::vector<Setting> shapes = usual_shapes();
    shapes.push_back({.d = 128, .bits = 2, .group = 3, .indexed = {2500}, .rows = {3}});
    shapes.push_back({.d = 256, .bits = 2, .group = 7, .indexed = {1300}, .rows = {1}});
    for (const Setting& s : shapes) {
      CAPTURE(s.d);
      CAPTURE(s.bits);
      CAPTURE(s.group);
      (void)check_shared(s);
    }
  }

  TEST_CASE("choice: long texts, keys below a floor of ranks are not kept") {
    for (const Setting& s : std::vector<Setting>{
             {.d = 64, .group = 4, .n_kv_heads = 1, .indexed = {40000}, .rows = {1}},
             {.d = 128, .group = 3, .n_kv_heads = 1, .indexed = {20000, 33000}, .rows = {1, 1}},
             {.d = 128, .group = 8, .n_kv_heads = 1, .indexed = {18000}, .rows = {1}}})
      CHECK(check_shared(s) == 0);
  }

  TEST_CASE("choice: a floor of ranks that too few keys reach") {
    for (const int group : {2, 6})
      CHECK(check_shared(Setting{.d = 64,
                                 .group = group,
                                 .n_kv_heads = 1,
                                 .indexed = {20000},
                                 .rows = {1},
                                 .clustered = true}) > 0);
  }

  TEST_CASE("choice: the same bits on every run") {
    for (const bool by_cluster : {false, true}) {
      const Case c(
          sharing({.d = 64, .indexed = {3000, 700}, .rows = {1, 2}, .by_cluster = by_cluster}));
      const Choice a = choose(c), b = choose(c);
      CHECK(a.count == b.count);
      for (int i = 0; i < c.n_rows * c.x.n_kv_heads; ++i) CHECK(a.list(i) == b.list(i));
      CHECK(a.masses == b.masses);
      CHECK(a.origin == b.origin);
    }
  }
}
