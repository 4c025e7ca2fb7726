#include <doctest/doctest.h>

#include "base/convert.h"
#include "base/parallel.h"
#include "error_text.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;

namespace {

constexpr int kBudget = recipe::Verified::kLeastBudget, kRecent = kBudget / 2, kWindow = 16,
              kGroup = 3, kDim = 32;

Cache verified(int budget = kBudget) {
  Cache c = sparse_cache(CacheKind::verified);
  c.verified = {.budget = {budget}, .window = kWindow};
  return c;
}

const TokenData kCone = cone_data(kDim, 2.0f);

/// The draft's reading first, so that the rig asks it.
constexpr int kDraft = 0, kTarget = 1;
struct Rig : PolicyRig {
  explicit Rig(const Shape& shape = {}, const Cache& draft = verified())
      : PolicyRig(shape, {draft, Cache{}}, kCone) {}
  /// Beside another draft of the same kind, which reads none of the sequences here.
  explicit Rig(const Cache& other) : PolicyRig({}, {verified(), Cache{}, other}, kCone) {}

  int sequence(const Ids& prompt, size_t chunk = 0) {
    const int slot = cache.create({kDraft, kTarget});
    prefill(slot, prompt, chunk);
    return slot;
  }
  /// Rows under the target's reading, a chain of drafted tokens.
  kv::Step verify(const std::vector<int>& slots, const std::vector<Ids>& ids) {
    std::vector<kv::SeqRows> rows;
    std::vector<std::vector<int>> parents(slots.size());
    std::vector<kv::Tree> trees;
    Ids all;
    for (size_t b = 0; b < slots.size(); ++b) {
      rows.push_back({slots[b], static_cast<int>(ids[b].size())});
      for (size_t i = 0; i < ids[b].size(); ++i) parents[b].push_back(static_cast<int>(i) - 1);
      trees.push_back({parents[b]});
      all.insert(all.end(), ids[b].begin(), ids[b].end());
    }
    kv::Step step =
        cache.begin({.rows = rows, .trees = trees, .reading = kv::Reading{.keys = kTarget}});
    outputs = attend(step, all);
    return step;
  }
  void round(int slot, const Ids& ids, int kept) {
    const kv::Step step = verify({slot}, {ids});
    cache.commit(step, std::vector<int>{kept});
  }
  std::vector<Row> outputs;
};

Ids chosen(Rig& rig, int slot, int layer, int kv_head) {
  const Row q(size_t{kGroup * kDim}, 1.0f);
  const PolicyRig::Selection s = rig.select(slot, rig.cache.length(slot), layer, kv_head, q);
  CHECK(s.inside);
  Ids ids;
  for (const KeySegment& segment : s.lists[0].segments)
    ids.insert(ids.end(), segment.ids, segment.ids + segment.n);
  return ids;
}
std::vector<Ids> all_chosen(Rig& rig, int slot) {
  std::vector<Ids> lists;
  for (int layer = 0; layer < 2; ++layer)
    for (int head = 0; head < 2; ++head) lists.push_back(chosen(rig, slot, layer, head));
  return lists;
}

/// Scores of a token's query and the keys of a text up to and with itself, in double precision.
std::vector<double> scores_of(const Ids& text, int row, int layer, int head) {
  Row q(kDim), k(kDim);
  kCone(Part::q, text[static_cast<size_t>(row)], layer, head, q.data());
  std::vector<double> scores;
  for (int t = 0; t <= row; ++t) {
    kCone(Part::k, text[static_cast<size_t>(t)], layer, head / kGroup, k.data());
    double dot = 0;
    for (size_t c = 0; c < k.size(); ++c) dot += double{q[c]} * k[c];
    scores.push_back(dot / std::sqrt(double{kDim}));
  }
  return scores;
}
double lse_of(const std::vector<double>& scores) {
  double sum = 0;
  for (const double s : scores) sum += std::exp(s);
  return std::log(sum);
}
/// Mean of the heads' lse over rows [begin, end) of a text.
double mean_lse(const Ids& text, int begin, int end, int layer, int head) {
  double sum = 0;
  for (int row = begin; row < end; ++row) sum += lse_of(scores_of(text, row, layer, head));
  return sum / (end - begin);
}

/// Whether a list holds the m best scores, but for scores that are equal up to rounding.
void check_best(const Ids& list, const std::vector<double>& scores, size_t m) {
  REQUIRE(list.size() == m);
  CHECK(std::ranges::is_sorted(list));
  std::vector<uint8_t> taken(scores.size());
  for (const int32_t id : list) taken.at(static_cast<size_t>(id)) = 1;
  double least = 1e30, most_left = -1e30;
  for (size_t t = 0; t < scores.size(); ++t)
    taken[t] != 0 ? least = std::min(least, scores[t]) : most_left = std::max(most_left, scores[t]);
  CHECK(most_left <= least + 0x1p-9 * std::abs(least) + 1e-4);
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_SUITE("kv/verified") {
  TEST_CASE("a round chooses what its rows attend to, by the heads' lse of the round before") {
    const Ids prompt = tokens(0, 600), first = tokens(5000, 5), second = tokens(6000, 4);
    Rig rig;
    const int slot = rig.sequence(prompt);
    rig.round(slot, first, 3);
    const Ids seen = joined(prompt, first);
    const Ids kept = joined(prompt, {5000, 5001, 5002});
    // Of each round: the text its rows end, its tokens before, the rows that gave the lse.
    const auto check = [&](const Ids& text, int base, const Ids& before, int lse_begin) {
      for (int layer = 0; layer < 2; ++layer)
        for (int kv_head = 0; kv_head < 2; ++kv_head) {
          std::vector<double> best(static_cast<size_t>(base), -1e30);
          for (int head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head) {
            const double lse =
                mean_lse(before, lse_begin, static_cast<int>(before.size()), layer, head);
            for (int row = base; row < static_cast<int>(text.size()); ++row) {
              const std::vector<double> scores = scores_of(text, row, layer, head);
              for (size_t t = 0; t < best.size(); ++t) best[t] = std::max(best[t], scores[t] - lse);
            }
          }
          best.resize(best.size() - kRecent);
          check_best(chosen(rig, slot, layer, kv_head), best, kBudget - kRecent);
        }
    };
    check(seen, 600, prompt, 600 - kWindow);
    rig.round(slot, second, 4);
    check(joined(kept, second), 603, seen, 600);
  }

  TEST_CASE("the last queries of the prompt choose first, and the window is read") {
    const Ids prompt = tokens(0, 500);
    for (const size_t chunk : {0u, 1u, 7u, 499u}) {
      CAPTURE(chunk);
      Rig rig;
      const int slot = rig.sequence(prompt, chunk);
      for (int layer = 0; layer < 2; ++layer)
        for (int kv_head = 0; kv_head < 2; ++kv_head) {
          std::vector<double> votes(size_t{500 - kWindow});
          for (int head = kv_head * kGroup; head < (kv_head + 1) * kGroup; ++head)
            for (int row = 500 - kWindow; row < 500; ++row) {
              const std::vector<double> scores = scores_of(prompt, row, layer, head);
              const double lse = lse_of(scores);
              for (size_t t = 0; t < votes.size(); ++t) votes[t] += std::exp(scores[t] - lse);
            }
          check_best(chosen(rig, slot, layer, kv_head), votes, kBudget - kWindow);
        }
    }
  }

  TEST_CASE("the draft reads the chosen keys and the last half of the budget on, the target all") {
    const Ids prompt = tokens(0, 600), drafted = tokens(5000, 4);
    Rig rig;
    PolicyRig full({}, {Cache{}}, kCone);
    const int slot = rig.sequence(prompt), plain = full.sequence(prompt);
    rig.round(slot, drafted, 4);
    CHECK(same(rig.outputs, full.extend(plain, drafted)));
    const std::vector<Ids> lists = all_chosen(rig, slot);
    const kv::SeqRows rows[] = {{slot, 1}};
    const kv::Step step = rig.cache.begin({.rows = rows, .reading = kv::Reading{.keys = kDraft}});
    const Row out = rig.attend(step, Ids{7000})[0];
    const Ids text = joined(joined(prompt, drafted), {7000});
    for (int layer = 0; layer < 2; ++layer)
      for (int head = 0; head < 6; ++head) {
        const std::vector<double> scores = scores_of(text, 604, layer, head);
        Ids read = lists[static_cast<size_t>(2 * layer + head / kGroup)];
        for (int t = 600 - kRecent; t < 605; ++t) read.push_back(t);
        double sum = 0;
        std::vector<double> want(kDim);
        Row v(kDim);
        for (const int32_t t : read) {
          const double weight = std::exp(scores[static_cast<size_t>(t)]);
          sum += weight;
          kCone(Part::v, text[static_cast<size_t>(t)], layer, head / kGroup, v.data());
          for (size_t c = 0; c < want.size(); ++c) want[c] += weight * v[c];
        }
        for (size_t c = 0; c < want.size(); ++c)
          REQUIRE(out[static_cast<size_t>(layer * 6 + head) * kDim + c] ==
                  doctest::Approx(want[c] / sum).epsilon(1e-4));
      }
    CHECK(all_chosen(rig, slot) == lists);  // its own rows leave nothing
  }

  TEST_CASE("a text within the budget is read in full, and chosen from as it grows") {
    Rig rig;
    const int slot = rig.sequence(tokens(0, kBudget - 2));
    rig.round(slot, tokens(5000, 4), 2);
    CHECK(chosen(rig, slot, 0, 0).empty());
    rig.round(slot, tokens(6000, 4), 4);
    CHECK(chosen(rig, slot, 0, 0).empty());  // 256 tokens before its rows
    rig.round(slot, tokens(7000, 4), 4);
    CHECK(chosen(rig, slot, 0, 0).size() == kBudget - kRecent);
  }

  TEST_CASE("neither threads nor batch mates show") {
    const Ids prompt = tokens(0, 600), other = tokens(1000, 400);
    const std::vector<Ids> drafted = {tokens(5000, 5), tokens(8000, 3)};
    Rig alone;
    const int slot = alone.sequence(prompt);
    alone.round(slot, drafted[0], 2);
    const std::vector<Ids> want = all_chosen(alone, slot);
    const int threads = max_threads();
    for (const int n : {1, 2, 3, 5}) {
      CAPTURE(n);
      set_threads(n);
      Rig rig;
      const int b = rig.sequence(other), a = rig.sequence(prompt);
      const kv::Step step = rig.verify({b, a}, {drafted[1], drafted[0]});
      rig.cache.commit(step, std::vector<int>{1, 2});
      CHECK(all_chosen(rig, a) == want);
    }
    set_threads(threads);
  }

  TEST_CASE("what a step chooses does not depend on how much of it is committed") {
    const Ids prompt = tokens(0, 600);
    Rig rig, other;
    const int slot = rig.sequence(prompt), twin = other.sequence(prompt);
    const std::vector<Ids> before = all_chosen(rig, slot);
    (void)rig.verify({slot}, {tokens(5000, 5)});
    CHECK(all_chosen(rig, slot) != before);
    other.round(twin, tokens(5000, 5), 5);
    CHECK(all_chosen(rig, slot) == all_chosen(other, twin));
  }

  TEST_CASE("steps with a sequence that the draft does not read leave nothing") {
    const Ids prompt = tokens(0, 600);
    Rig rig;
    const int slot = rig.sequence(prompt), alone = rig.cache.create(kTarget);
    const std::vector<Ids> before = all_chosen(rig, slot);
    const kv::Step step = rig.verify({slot, alone}, {tokens(5000, 5), tokens(0, 3)});
    rig.cache.commit(step, std::vector<int>{2, 3});
    CHECK(all_chosen(rig, slot) == before);
  }

  TEST_CASE("another draft of the kind, which reads other sequences, changes nothing") {
    Rig alone, other(verified(2 * kBudget));
    const int a = alone.sequence(tokens(0, 400)), b = other.sequence(tokens(0, 400));
    const std::vector<Ids> first = all_chosen(alone, a);
    for (int i = 0; i < 2; ++i) {  // the first leaves the lse that the second counts from
      alone.round(a, tokens(7000 + 10 * i, 5), 2);
      other.round(b, tokens(7000 + 10 * i, 5), 2);
    }
    CHECK(all_chosen(alone, a) != first);
    CHECK(all_chosen(other, b) == all_chosen(alone, a));
  }

  TEST_CASE("a fork has its parent's choice and lse, and goes its own way") {
    const Ids prompt = tokens(0, 600);
    Rig rig;
    const int root = rig.sequence(prompt);
    rig.round(root, tokens(5000, 4), 2);
    const std::vector<Ids> before = all_chosen(rig, root);
    const int fork = rig.cache.fork(root, {kDraft, kTarget});
    CHECK(all_chosen(rig, fork) == before);
    rig.round(fork, tokens(6000, 5), 3);
    const std::vector<Ids> after = all_chosen(rig, fork);
    CHECK(all_chosen(rig, root) == before);
    CHECK(after != before);
    rig.round(root, tokens(6000, 5), 1);
    CHECK(all_chosen(rig, root) == after);
    rig.cache.release(fork);
    const int fresh = rig.sequence(prompt);  // in the slot of the fork
    rig.round(fresh, tokens(5000, 4), 2);
    CHECK(all_chosen(rig, fresh) == before);
  }

  TEST_CASE("going back before the verified rows: the queries that are held choose") {
    PolicyRig::Shape shape;
    shape.max_draft_rows = 160;
    Rig rig(shape), shorter(shape);
    const int slot = rig.sequence(tokens(0, 600));
    rig.round(slot, tokens(5000, 4), 4);
    const std::vector<Ids> chosen_there = all_chosen(rig, slot);
    rig.cache.truncate(slot, 600 - kRecent);
    CHECK(all_chosen(rig, slot) == chosen_there);
    rig.cache.truncate(slot, 450);
    CHECK(all_chosen(rig, slot) == all_chosen(shorter, shorter.sequence(tokens(0, 450))));
    rig.cache.truncate(slot, 300);  // no query of the text up to here is held
    CHECK(chosen(rig, slot, 0, 0).empty());
  }

  TEST_CASE(
      "layers with a window of the model's own, and dense ones, are read as the target does") {
    PolicyRig::Shape shape;
    shape.geometry = with_window(shape.geometry, 100, 1);
    Rig windowed(shape);
    const int slot = windowed.sequence(tokens(0, 600));
    windowed.round(slot, tokens(5000, 4), 2);
    CHECK(chosen(windowed, slot, 0, 0).size() == kBudget - kRecent);
    const kv::SeqRows rows[] = {{slot, 1}};
    const kv::Step step =
        windowed.cache.begin({.rows = rows, .reading = kv::Reading{.keys = kDraft}});
    CHECK(all_finite(windowed.attend(step, Ids{7000})));
    Cache dense = verified();
    dense.dense_layers = {0, 1};
    Rig all({}, dense);
    const int other = all.sequence(tokens(0, 600));
    all.round(other, tokens(5000, 4), 2);
    PolicyRig full({}, {Cache{}}, kCone);
    const int plain = full.sequence(tokens(0, 600));
    full.append(plain, Ids{5000, 5001});
    const kv::SeqRows one[] = {{other, 1}};
    const kv::Step next = all.cache.begin({.rows = one, .reading = kv::Reading{.keys = kDraft}});
    CHECK(same(all.attend(next, Ids{7000}), full.extend(plain, Ids{7000})));
  }

  TEST_CASE("memory, by name: two bytes a key and KV head, a list, the newest queries") {
    const kv::Geometry g{
        .n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 16, .dtype = DType::bf16};
    kv::Cache::Spec spec{.geometry = g,
                         .max_seqs = 5,
                         .max_tokens = 500,
                         .total_tokens = 2500,
                         .max_rows = 128,
                         .max_draft_rows = 9,
                         .policies = {Cache{}, verified()}};
    const auto bytes = [&](const std::string& name) {
      MemoryPlan plan;
      kv::Cache::plan(spec, plan);
      const PlanItem* item = plan.find(name);
      return item == nullptr ? size_t{0} : item->bytes;
    };
    CHECK(bytes("kv/queries") == 5 * 3 * (kWindow + 9) * 8 * 16 * 2);
    CHECK(bytes("kv/scores") == 5 * 3 * 2 * 512 * 2);
    CHECK(bytes("kv/scores.lse") == 5 * 3 * 8 * 4);
    CHECK(bytes("workspace/scores.lse") == 128 * 3 * 8 * 4);
    CHECK(bytes("index/1 verified.lists") == 5 * 3 * 2 * (kBudget - kWindow) * 4);
    CHECK(bytes("index/1 verified.choosing") > 0);
    spec.policies = {Cache{}};
    CHECK(bytes("kv/scores") == 0);
    spec.policies = {Cache{}, verified(600)};  // no text is that long
    CHECK(bytes("index/1 verified.lists") == 0);
    CHECK(bytes("kv/scores") == 5 * 3 * 2 * 512 * 2);
  }

  TEST_CASE("without a reading of all keys it is refused, with a remedy") {
    for (const std::vector<Cache>& policies :
         {std::vector<Cache>{verified()}, {streaming(4, 64), verified()}})
      CHECK_THROWS_WITH_AS((void)make_engine(tiny_model("tiny-2m"), {.caches = policies}),
                           "cache.kind: is verified, which is only supported for drafts: its keys "
                           "are chosen while the target reads the full KV cache",
                           Error);
  }
}
