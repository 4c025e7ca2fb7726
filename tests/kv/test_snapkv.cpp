#include <doctest/doctest.h>

#include <set>

#include "base/parallel.h"
#include "decode/state.h"
#include "error_text.h"
#include "kv/policies/copied_keys.h"
#include "kv/policies/pool_votes.h"
#include "kv/tree_runs.h"
#include "ops/selection.h"
#include "policy_rig.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::SnapScale;

namespace {

constexpr int kWindow = 16, kBudget = 60, kSinks = 4;

Cache snap(int budget = kBudget, int window = kWindow, int sinks = kSinks) {
  Cache c = sparse_cache(CacheKind::snapkv, sinks);
  c.snapkv = {.budget = {budget}, .window = window, .refresh = {}};
  return c;
}
Cache refreshed(int tokens) {
  Cache c = snap();
  c.snapkv.refresh = {tokens};
  return c;
}

const TokenData kCone = cone_data(32);

PolicyRig::Shape shape_of(int group) {
  PolicyRig::Shape shape;
  shape.geometry.n_heads = 2 * group;
  return shape;
}

/// Chosen tokens of a KV head; those of all its query heads, which must be the same.
Ids chosen(PolicyRig& rig, int slot, int layer, int kv_head, int group = 3) {
  const Row q(static_cast<size_t>(group * 32), 1.0f);
  const PolicyRig::Selection s = rig.select(slot, rig.cache.length(slot), layer, kv_head, q);
  CHECK(s.inside);
  Ids ids;
  for (const kv::KeyList& list : s.lists) {
    Ids of_head;
    for (const KeySegment& segment : list.segments)
      of_head.insert(of_head.end(), segment.ids, segment.ids + segment.n);
    if (&list != &s.lists.front()) REQUIRE(of_head == ids);
    ids = of_head;
  }
  return ids;
}
std::vector<Ids> all_chosen(PolicyRig& rig, int slot, int group = 3) {
  std::vector<Ids> lists;
  for (int layer = 0; layer < 2; ++layer)
    for (int head = 0; head < 2; ++head) lists.push_back(chosen(rig, slot, layer, head, group));
  return lists;
}

/// Scores of the candidates of a text whose last queries choose, in double precision.
std::vector<double> naive_scores(const Cache& c, const TokenData& data, const Ids& text, int layer,
                                 int kv_head, int group, int d) {
  const int n = static_cast<int>(text.size()), window = c.snapkv.window;
  const double scale = c.snapkv.scale == SnapScale::on ? 1 / std::sqrt(double(d)) : 1;
  Row q(static_cast<size_t>(d)), k(static_cast<size_t>(d));
  std::vector<double> scores(static_cast<size_t>(n - window));
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    std::vector<double> votes(static_cast<size_t>(n));
    for (int row = n - window; row < n; ++row) {
      data(Part::q, text[static_cast<size_t>(row)], layer, head, q.data());
      std::vector<double> weights;
      double sum = 0;
      for (int t = 0; t <= row; ++t) {
        data(Part::k, text[static_cast<size_t>(t)], layer, kv_head, k.data());
        double dot = 0;
        for (size_t i = 0; i < k.size(); ++i) dot += double{q[i]} * k[i];
        sum += weights.emplace_back(std::exp(scale * dot));
      }
      for (size_t t = 0; t < weights.size(); ++t) votes[t] += weights[t] / sum;
    }
    for (int t = 0; t < n - window; ++t)
      for (int i = t - c.snapkv.pool / 2; i <= t + c.snapkv.pool / 2; ++i)
        if (i >= 0 && i < n - window)
          scores[static_cast<size_t>(t)] += votes[static_cast<size_t>(i)] / c.snapkv.pool;
  }
  return scores;
}

/// Whether a list is what the scores choose, but for scores that are equal up to rounding.
void check_choice(const Ids& list, const std::vector<double>& scores, const Cache& c) {
  const size_t sinks = static_cast<size_t>(c.sinks);
  REQUIRE(list.size() == static_cast<size_t>(c.snapkv.budget - c.snapkv.window));
  CHECK(std::ranges::is_sorted(list));
  std::vector<uint8_t> taken(scores.size());
  for (const int32_t id : list) {
    REQUIRE(static_cast<size_t>(id) < scores.size());
    taken[static_cast<size_t>(id)] = 1;
  }
  double least = 1e30, most_left = -1;
  for (size_t t = 0; t < scores.size(); ++t) {
    if (t < sinks) {
      CHECK(taken[t] == 1);
    } else if (taken[t] != 0) {
      least = std::min(least, scores[t]);
    } else {
      most_left = std::max(most_left, scores[t]);
    }
  }
  CHECK(most_left <= least * (1 + 1e-4));
}

/// The text of the specification's unit vector: two query heads of one KV head.
struct Unit {
  static constexpr float kKeys[8][2] = {{1, 0},  {0, 1}, {2, 1},   {-1, 1},
                                        {0, -2}, {1, 2}, {.5, .5}, {1, -1}};
  static constexpr float kQueries[2][2][2] = {{{1, .5}, {0, 1}}, {{-.5, 1}, {1, 1}}};  // [head]

  static void data(Part part, int32_t token, int, int head, float* out) {
    const float* from = part == Part::q ? kQueries[head][token < 6 ? 0 : token - 6] : kKeys[token];
    out[0] = from[0];
    out[1] = from[1];
  }
  static std::vector<float> scores(float scale) {
    std::vector<float> keys(kPageTokens * 2), q, votes(8), pooled(6), scratch(2 * kPageTokens + 8);
    for (int t = 0; t < 8; ++t) std::copy_n(kKeys[t], 2, &keys[static_cast<size_t>(2 * t)]);
    for (int position = 0; position < 2; ++position)
      for (int head = 0; head < 2; ++head)
        q.insert(q.end(), kQueries[head][position], kQueries[head][position] + 2);
    const int32_t page = 0;
    ops::key_votes({.votes = votes.data(),
                    .q = q.data(),
                    .k_pool = keys.data(),
                    .pages = &page,
                    .first_position = 6,
                    .n_positions = 2,
                    .n_heads = 2,
                    .n_kv_heads = 1,
                    .kv_head = 0,
                    .d = 2,
                    .dtype = DType::f32,
                    .scale = scale,
                    .scratch = scratch.data()});
    kv::pool_votes(std::span(votes).first(6), 3, pooled.data());
    return pooled;
  }
};

}  // namespace

TEST_SUITE("kv/snapkv") {
  TEST_CASE("the specification's unit vector: scores, and what they choose") {
    const double scaled[] = {.2833061459, .5952105091, .6466672963,
                             .5049458045, .5788594402, .4126021776};
    const double unscaled[] = {.2314144704, .5854576094, .6665276901,
                               .5290778908, .6321511209, .4680272265};
    const std::vector<float> a = Unit::scores(1 / std::sqrt(2.0f)), b = Unit::scores(1);
    for (size_t i = 0; i < 6; ++i) {
      CHECK(a[i] == doctest::Approx(scaled[i]).epsilon(1e-6));
      CHECK(b[i] == doctest::Approx(unscaled[i]).epsilon(1e-6));
    }
    for (const auto& [scale, want] :
         {std::pair{SnapScale::on, Ids{1, 2}}, {SnapScale::off, Ids{2, 4}}}) {
      Cache cache = snap(4, 2, 0);
      cache.snapkv.pool = 3;
      cache.snapkv.scale = scale;
      const PolicyRig::Shape shape{.geometry = {.n_layers = 1,
                                                .n_heads = 2,
                                                .n_kv_heads = 1,
                                                .head_dim = 2,
                                                .dtype = DType::f32},
                                   .max_tokens = 64};
      PolicyRig rig(shape, {cache}, Unit::data);
      const int slot = rig.sequence(tokens(0, 8));
      const PolicyRig::Selection s = rig.select(slot, 8, 0, 0, Row{1, 0, 0, 1});
      REQUIRE(s.lists[0].segments.size() == 1);
      const KeySegment& list = s.lists[0].segments[0];
      CHECK(Ids(list.ids, list.ids + list.n) == want);
    }
  }

  TEST_CASE("the choice is the naive one, for groups of any size, pools and windows") {
    const Ids prompt = tokens(0, 300);
    for (const int group : {1, 2, 4, 5, 7, 8})
      for (const SnapScale scale : {SnapScale::on, SnapScale::off})
        for (const auto& [window, pool, sinks] :
             {std::tuple{16, 5, 4}, {32, 1, 0}, {7, 9, 1}, {1, 3, 4}}) {
          CAPTURE(group);
          CAPTURE(recipe::yaml_text(scale));
          CAPTURE(window);
          Cache cache = snap(kBudget, window, sinks);
          cache.snapkv.pool = pool;
          cache.snapkv.scale = scale;
          PolicyRig rig(shape_of(group), {cache}, kCone);
          const int slot = rig.sequence(prompt);
          for (int layer = 0; layer < 2; ++layer)
            for (int head = 0; head < 2; ++head)
              check_choice(chosen(rig, slot, layer, head, group),
                           naive_scores(cache, kCone, prompt, layer, head, group, 32), cache);
        }
  }

  TEST_CASE("equal scores: the lowest tokens") {
    const TokenData equal = [](Part part, int32_t token, int layer, int head, float* out) {
      part == Part::k ? static_cast<void>(std::fill_n(out, 32, 0.5f))
                      : kCone(part, token, layer, head, out);
    };
    Cache cache = snap();
    cache.snapkv.pool = 1;
    PolicyRig rig({}, {cache}, equal);
    CHECK(chosen(rig, rig.sequence(tokens(0, 300)), 0, 0) == tokens(0, kBudget - kWindow));
  }

  TEST_CASE(
      "neither chunks of the prefill nor threads show, the last chunk shorter than the window") {
    const Ids prompt = tokens(0, 333);
    PolicyRig whole({}, {snap()}, kCone);
    const std::vector<Ids> want = all_chosen(whole, whole.sequence(prompt));
    for (const size_t chunk : {1u, 5u, 15u, 16u, 17u, 64u, 300u, 332u}) {
      CAPTURE(chunk);
      PolicyRig rig({}, {snap()}, kCone);
      const int slot = rig.cache.create();
      rig.prefill(slot, prompt, chunk);
      CHECK(all_chosen(rig, slot) == want);
    }
    const int threads = max_threads();
    for (const int n : {1, 2, 3, 5}) {
      set_threads(n);
      PolicyRig rig({}, {snap()}, kCone);
      CHECK(all_chosen(rig, rig.sequence(prompt)) == want);
    }
    set_threads(threads);
  }

  TEST_CASE("a prompt within the budget is read in full, and generated tokens behind it") {
    const Ids after = tokens(5000, 40);
    for (const int length : {1, kWindow - 1, kWindow, kBudget - 1, kBudget}) {
      CAPTURE(length);
      PolicyRig rig({}, {snap()}, kCone), full({}, {Cache{}}, kCone);
      const Ids prompt = tokens(0, length);
      CHECK(same(rig.extend_each(rig.sequence(prompt), after),
                 full.extend_each(full.sequence(prompt), after)));
    }
    PolicyRig rig({}, {snap()}, kCone), full({}, {Cache{}}, kCone);
    const Ids prompt = tokens(0, kBudget + 1);
    CHECK(!same(rig.extend_each(rig.sequence(prompt), after),
                full.extend_each(full.sequence(prompt), after)));
  }

  TEST_CASE("rows attend to the chosen keys, the window and what came after it, and no others") {
    const Ids prompt = tokens(0, 300), after = tokens(5000, 5);
    PolicyRig rig({}, {snap()}, kCone);
    const int slot = rig.sequence(prompt);
    const std::vector<Ids> lists = all_chosen(rig, slot);
    const std::vector<Row> rows = rig.extend(slot, after);
    CHECK(all_chosen(rig, slot) == lists);
    for (int r = 0; r < 5; ++r)
      for (int layer = 0; layer < 2; ++layer)
        for (int head = 0; head < 6; ++head) {
          Ids keys = lists[static_cast<size_t>(2 * layer + head / 3)];
          for (int t = 300 - kWindow; t < 300; ++t) keys.push_back(t);
          keys.insert(keys.end(), after.begin(), after.begin() + r + 1);
          Row q(32), k(32), v(32);
          std::vector<double> out(32);
          double sum = 0;
          kCone(Part::q, after[static_cast<size_t>(r)], layer, head, q.data());
          for (const int32_t key : keys) {  // a token is its position or its number
            kCone(Part::k, key, layer, head / 3, k.data());
            kCone(Part::v, key, layer, head / 3, v.data());
            double dot = 0;
            for (size_t c = 0; c < 32; ++c) dot += double{q[c]} * k[c];
            const double weight = std::exp(dot / std::sqrt(32.0));
            sum += weight;
            for (size_t c = 0; c < 32; ++c) out[c] += weight * v[c];
          }
          for (size_t c = 0; c < 32; ++c)
            REQUIRE(rows[static_cast<size_t>(r)][static_cast<size_t>(layer * 6 + head) * 32 + c] ==
                    doctest::Approx(out[c] / sum).epsilon(1e-4));
        }
  }

  TEST_CASE(
      "a fork has its parent's choice until its own prompt ends, however few tokens that adds") {
    const Ids prompt = tokens(0, 300);
    for (const int more : {1, 10, kWindow, 50}) {
      CAPTURE(more);
      PolicyRig rig({}, {snap()}, kCone);
      const int root = rig.sequence(prompt), fork = rig.cache.fork(root, 0);
      const std::vector<Ids> before = all_chosen(rig, root);
      CHECK(all_chosen(rig, fork) == before);
      rig.prefill(fork, tokens(1000, more));
      Ids longer = prompt;
      for (const int32_t id : tokens(1000, more)) longer.push_back(id);
      CHECK(all_chosen(rig, fork) == all_chosen(rig, rig.sequence(longer)));
      CHECK(all_chosen(rig, root) == before);
    }
  }

  TEST_CASE("a prompt that goes on after generated text chooses by the true last queries") {
    PolicyRig rig({}, {snap()}, kCone);
    const int slot = rig.sequence(tokens(0, 200));
    rig.append(slot, tokens(3000, 30));
    rig.prefill(slot, tokens(1000, 5));
    Ids text = tokens(0, 200);
    for (const Ids& part : {tokens(3000, 30), tokens(1000, 5)})
      text.insert(text.end(), part.begin(), part.end());
    CHECK(all_chosen(rig, slot) == all_chosen(rig, rig.sequence(text)));
  }

  TEST_CASE("never: the choice stays; refresh: the last accepted queries choose again") {
    const Ids prompt = tokens(0, 200), after = tokens(3000, 100);
    for (const int every : {1, 7, 32, 100}) {
      CAPTURE(every);
      PolicyRig rig({}, {refreshed(every)}, kCone);
      const int slot = rig.sequence(prompt);
      for (size_t i = 0; i < after.size(); ++i) rig.append(slot, std::span(after).subspan(i, 1));
      Ids text = prompt;
      text.insert(text.end(), after.begin(),
                  after.begin() + static_cast<std::ptrdiff_t>(after.size()) / every * every);
      PolicyRig fresh({}, {snap()}, kCone);
      CHECK(all_chosen(rig, slot) == all_chosen(fresh, fresh.sequence(text)));
    }
    PolicyRig rig({}, {snap()}, kCone);
    const int slot = rig.sequence(prompt);
    const std::vector<Ids> before = all_chosen(rig, slot);
    rig.append(slot, after);
    CHECK(all_chosen(rig, slot) == before);
  }

  TEST_CASE("refresh: rejected rows leave no trace, nor does how many a round accepts") {
    const Ids prompt = tokens(0, 200), after = tokens(3000, 40);
    PolicyRig plain({}, {refreshed(8)}, kCone), rounds({}, {refreshed(8)}, kCone);
    const int a = plain.sequence(prompt), b = rounds.sequence(prompt);
    plain.append(a, after);
    size_t done = 0;
    PhiloxStream draw(9);
    while (done < after.size()) {
      const int kept[] = {
          std::min(static_cast<int>(draw.below(6)), static_cast<int>(after.size() - done))};
      Ids rows(after.begin() + static_cast<std::ptrdiff_t>(done),
               after.begin() + static_cast<std::ptrdiff_t>(done) + kept[0]);
      for (int i = 0; i < 5; ++i) rows.push_back(9000 + 10 * static_cast<int>(done) + i);
      std::vector<int> parent;
      for (size_t i = 0; i < rows.size(); ++i) parent.push_back(static_cast<int>(i) - 1);
      const kv::SeqRows of[] = {{b, static_cast<int>(rows.size())}};
      const kv::Tree trees[] = {{parent}};
      const kv::Step step = rounds.cache.begin({.rows = of, .trees = trees});
      rounds.attend(step, rows);
      rounds.cache.commit(step, kept);
      done += static_cast<size_t>(kept[0]);
    }
    CHECK(all_chosen(rounds, b) == all_chosen(plain, a));
  }

  TEST_CASE("refresh: the queries of an accepted path move with its keys") {
    const Ids prompt = tokens(0, 200);
    PolicyRig plain({}, {refreshed(4)}, kCone), trees({}, {refreshed(4)}, kCone);
    const int a = plain.sequence(prompt), b = trees.sequence(prompt);
    // The path 0, 2, 4, 6 of seven nodes; others hold tokens that are not accepted.
    const std::vector<int> parent = {-1, 0, 0, 1, 2, 2, 4};
    const Ids rows = {3000, 9001, 3001, 9003, 3002, 9005, 3003};
    const kv::SeqRows of[] = {{b, 7}};
    const kv::Tree tree[] = {{parent}};
    const kv::Step step = trees.cache.begin({.rows = of, .trees = tree});
    trees.attend(step, rows);
    const std::vector<int> path[] = {{0, 2, 4, 6}};
    const int kept[] = {4};
    commit_paths(trees.cache, step, kept, path);
    plain.append(a, tokens(3000, 4));
    CHECK(all_chosen(trees, b) == all_chosen(plain, a));
  }

  TEST_CASE(
      "going back: within the window the choice stays, further back what queries are left choose") {
    const Ids prompt = tokens(0, 300), after = tokens(5000, 4);
    PolicyRig::Shape shape;
    shape.max_draft_rows = 40;
    PolicyRig rig(shape, {snap()}, kCone);
    const int slot = rig.sequence(prompt);
    const std::vector<Ids> before = all_chosen(rig, slot);
    rig.cache.truncate(slot, 300 - kWindow);
    CHECK(all_chosen(rig, slot) == before);
    rig.cache.truncate(slot, 270);
    PolicyRig shorter(shape, {snap()}, kCone);
    CHECK(all_chosen(rig, slot) == all_chosen(shorter, shorter.sequence(tokens(0, 270))));
    // No query of the text up to here is held: everything is read.
    rig.cache.truncate(slot, 150);
    PolicyRig full(shape, {Cache{}}, kCone);
    CHECK(
        same(rig.extend_each(slot, after), full.extend_each(full.sequence(tokens(0, 150)), after)));
    // A prompt that goes on from there is chosen from again.
    rig.prefill(slot, tokens(6000, 100));
    CHECK(chosen(rig, slot, 0, 0).size() == kBudget - kWindow);
  }

  TEST_CASE("keys that came without queries are read in full") {
    PolicyRig rig({}, {snap()}, kCone);
    const int slot = rig.cache.create();
    rig.cache.store().reserve(slot, 300);
    rig.cache.store().set_length(slot, 300);
    rig.cache.adopt_prompt(slot);
    CHECK(chosen(rig, slot, 0, 0).empty());
    rig.append(slot, tokens(5000, 3));
    rig.cache.adopt_prompt(slot);
    CHECK(chosen(rig, slot, 0, 0).size() == kBudget - kWindow);  // by three queries
  }

  TEST_CASE("dense layers: none unless they are set") {
    const Ids prompt = tokens(0, 300);
    Cache by_default = snap(), set = snap();
    by_default.dense_layers = Cache::default_dense_layers();
    set.dense_layers = {0};
    PolicyRig a({}, {by_default}, kCone), b({}, {set}, kCone);
    const int slot_a = a.sequence(prompt), slot_b = b.sequence(prompt);
    a.extend(slot_a, tokens(5000, 1));
    b.extend(slot_b, tokens(5000, 1));
    CHECK(a.cache.usage(0).dense_bytes == 0);
    CHECK(b.cache.usage(0).dense_bytes == PolicyRig::Shape{}.geometry.token_bytes() * 301);
  }

  TEST_CASE("what is read is counted: the list of a group's heads once") {
    PolicyRig rig({.max_seqs = 1}, {snap()}, kCone);
    const int threads = max_threads();
    set_threads(1);
    const int slot = rig.sequence(tokens(0, 300));
    rig.extend(slot, tokens(5000, 1));
    set_threads(threads);
    const kv::KeyUsage& usage = rig.cache.usage(0);
    CHECK(usage.queries == 12);
    CHECK(usage.selected == 12 * (kBudget - kWindow - kSinks));
    CHECK(usage.fixed == 12 * (kSinks + kWindow + 1));
    CHECK(usage.key_bytes == 2 * PolicyRig::Shape{}.geometry.token_bytes() * (kBudget + 1));
  }

  TEST_CASE("copies: shared by forks, whose pages are free when the last goes or chooses again") {
    constexpr int kTokens = 130, kSlots = 4;  // three pages
    const kv::Bounds bounds{.geometry = {.n_layers = 3,
                                         .n_heads = 2,
                                         .n_kv_heads = 2,
                                         .head_dim = 16,
                                         .dtype = DType::f32},
                            .max_seqs = kSlots,
                            .max_read = 2};
    kv::CopiedKeys copies(kTokens, {0, 2}, bounds);
    MemoryPlan plan;
    copies.plan(plan, "copies", true);
    CHECK(plan.find("copies.derived pages/k")->bytes == 2 * 2 * 3 * 2 * 64 * 16 * 4);
    Arena arena(plan);
    copies.allocate(arena, "copies", true);
    const auto pages = [&](int slot) { return copies.store().pages(slot); };
    CHECK(pages(0).empty());
    copies.begin(0, kTokens);
    const std::vector<int32_t> first = pages(0);
    CHECK(first.size() == 3);
    copies.begin(0, kTokens);  // chosen again: in place
    CHECK(pages(0) == first);
    copies.fork(0, 1);
    copies.fork(0, 2);
    CHECK(pages(2) == first);
    copies.begin(1, kTokens);
    CHECK(copies.store().free_pages() == 0);
    CHECK(pages(0) == first);
    copies.set_rest(0, 0, 0);
    CHECK(pages(2) == first);
    copies.begin(2, kTokens);
    CHECK(copies.store().free_pages() == 0);
    copies.set_rest(1, 500, 64);  // the rest of a choice gave way
    CHECK(copies.tokens(1) == 64);
    CHECK(copies.store().free_pages() == 2);
    copies.set_rest(1, 0, 0);
    copies.fork(1, 3);  // of one without
    CHECK(copies.tokens(3) == 0);
    copies.begin(3, 100);
    CHECK(pages(3).size() == 2);
  }

  TEST_CASE("memory: a list a sequence, layer and KV head, and the newest queries, by name") {
    const kv::Geometry g{
        .n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 16, .dtype = DType::bf16};
    kv::Cache::Spec spec{.geometry = g,
                         .max_seqs = 5,
                         .max_tokens = 500,
                         .total_tokens = 2500,
                         .max_rows = 128,
                         .max_draft_rows = 9,
                         .policies = {Cache{}, snap()}};
    const auto bytes = [&](const std::string& name) {
      MemoryPlan plan;
      kv::Cache::plan(spec, plan);
      const PlanItem* item = plan.find(name);
      return item == nullptr ? size_t{0} : item->bytes;
    };
    CHECK(bytes("kv/queries") == 5 * 3 * (kWindow + 9) * 8 * 16 * 2);
    CHECK(bytes("index/1 snapkv.lists") == 5 * 3 * 2 * (kBudget - kWindow) * 4);
    CHECK(bytes("index/1 snapkv.choosing") > 0);
    spec.device = {Device::Kind::cuda, 0};
    spec.multiprocessors = 132;
    CHECK(bytes("index/1 snapkv.lists") == 0);
    for (const char* half : {"k", "v"})
      CHECK(bytes(std::string("index/1 snapkv.derived pages/") + half) ==
            5 * 3 * 1 * 2 * 64 * 16 * 2);
    CHECK(bytes("index/1 snapkv.tables") == (5 * 1 + 5 * 2 + 5) * 4);
    spec.device = {};
    spec.policies = {Cache{}};
    CHECK(bytes("kv/queries") == 0);
    spec.policies = {snap(600)};  // no text is that long
    CHECK(bytes("index/snapkv.lists") == 0);
  }

  TEST_CASE("a state without the queries, or with too few, is refused with a remedy") {
    const TemporaryFolder folder;
    const auto restored = [&](const Cache& saved_by, const Cache& read_by, int length) {
      const auto first = make_engine(small_model("llama-3.1"), {.caches = {saved_by}});
      const Ids ids = random_ids(*first, length, 1);
      const int slot = first->cache().create();
      prefill(*first, slot, ids);
      decode::save_state(folder / "state", *first, slot, ids);
      const auto second = make_engine(small_model("llama-3.1"), {.caches = {read_by}});
      const auto state =
          decode::open_state(folder / "state", second->files(), second->cache().geometry().dtype);
      return input_error_text([&] { (void)decode::restore_state(state, *second, 0); });
    };
    CHECK(restored({}, snap(), 230)
              .find("holds the last 0 queries, cache.kind of this run needs 16") !=
          std::string::npos);
    CHECK(restored(snap(60, 8), snap(60, 16), 230)
              .find("holds the last 8 queries, cache.kind of this run needs 16") !=
          std::string::npos);
    CHECK(restored(snap(60, 16), snap(60, 8), 230) == "nothing thrown");
    CHECK(restored(snap(60, 16), snap(60, 16), 9) == "nothing thrown");
    CHECK(restored(snap(), {}, 230) == "nothing thrown");
  }
}
