// How chunks that were chosen follow a sequence: forks, truncation, rounds, memory.
#include <doctest/doctest.h>

#include "error_text.h"
#include "kv/retrieval_rig.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::test::retrieval_rig;
using recipe::Cache;
using recipe::ChoosingQuery;

namespace {

Cache every(int tokens, int budget = 64, int chunk = 8) {
  Cache c = retrieval(budget, chunk);
  c.retrieval.rebuild = {.tokens = tokens};
  return c;
}

std::vector<Ids> fresh_choice(const Cache& cache, const Ids& text) {
  PolicyRig rig({}, {cache}, kCone);
  return all_chosen(rig, rig.sequence(text));
}

Ids joined(Ids text, const Ids& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

}  // namespace

TEST_SUITE("kv/retrieval_changes") {
  TEST_CASE("a fork has its parent's choice until its own prompt ends, and the parent keeps it") {
    const Cache cache = retrieval(64, 8);
    for (const int length : {300, 512, 515})  // within a block of means, at its end, after it
      for (const int more : {1, 10, 50, 300}) {
        CAPTURE(length);
        CAPTURE(more);
        const Ids prompt = tokens(0, length), own = tokens(5000, more), other = tokens(7000, more);
        PolicyRig rig({}, {cache}, kCone);
        const int root = rig.sequence(prompt), a = rig.cache.fork(root, 0);
        const int b = rig.cache.fork(root, 0);
        const std::vector<Ids> before = all_chosen(rig, root);
        CHECK(all_chosen(rig, a) == before);
        rig.prefill(a, own);
        rig.prefill(b, other);
        CHECK(all_chosen(rig, a) == fresh_choice(cache, joined(prompt, own)));
        CHECK(all_chosen(rig, b) == fresh_choice(cache, joined(prompt, other)));
        CHECK(all_chosen(rig, root) == before);
        rig.cache.release(a);
        rig.prefill(root, other);
        CHECK(all_chosen(rig, root) == all_chosen(rig, b));
      }
  }

  TEST_CASE("forks that generate choose each for itself") {
    const Cache cache = every(16);
    const Ids prompt = tokens(0, 200);
    PolicyRig rig({}, {cache}, kCone);
    const int root = rig.sequence(prompt), fork = rig.cache.fork(root, 0);
    const Ids one = tokens(5000, 32), two = tokens(7000, 32);
    for (size_t i = 0; i < 32; ++i) {
      rig.append(root, std::span(one).subspan(i, 1));
      rig.append(fork, std::span(two).subspan(i, 1));
    }
    CHECK(all_chosen(rig, root) == fresh_choice(cache, joined(prompt, one)));
    CHECK(all_chosen(rig, fork) == fresh_choice(cache, joined(prompt, two)));
  }

  TEST_CASE("slots that are used again begin afresh") {
    const Cache cache = retrieval(64, 8);
    PolicyRig rig({.max_seqs = 2}, {cache}, kCone);
    const int kept = rig.sequence(tokens(0, 400));
    const std::vector<Ids> want = all_chosen(rig, kept);
    for (const int length : {700, 30, 300}) {
      const Ids other = tokens(10 * length, length);
      const int slot = rig.sequence(other);
      CHECK(all_chosen(rig, slot) == fresh_choice(cache, other));
      rig.cache.release(slot);
    }
    CHECK(all_chosen(rig, kept) == want);
  }

  TEST_CASE("going back to held queries: the choice of a prompt of that length") {
    for (const ChoosingQuery query : {ChoosingQuery::last, ChoosingQuery::window})
      for (const int back : {299, 296, 290, 288, 270}) {
        CAPTURE(back);
        Cache cache = retrieval(64, 8);
        cache.retrieval.query = query;
        PolicyRig rig({}, {cache}, kCone);
        const int slot = rig.sequence(tokens(0, 300)), fork = rig.cache.fork(slot, 0);
        rig.cache.truncate(slot, back);
        CHECK(all_chosen(rig, slot) == fresh_choice(cache, tokens(0, back)));
        CHECK(all_chosen(rig, fork) == fresh_choice(cache, tokens(0, 300)));
        // And on again: means of tokens that went and came are those of the new ones.
        const Ids after = tokens(6000, 60);
        rig.prefill(slot, after);
        CHECK(all_chosen(rig, slot) == fresh_choice(cache, joined(tokens(0, back), after)));
      }
  }

  TEST_CASE("going back where no queries are held: all is read until the next token's query is") {
    const Cache cache = retrieval(64, 8);
    PolicyRig rig({}, {cache}, kCone), full({}, {Cache{}}, kCone);
    const Ids first = tokens(0, 150), after = tokens(6000, 2);
    const int slot = rig.sequence(tokens(0, 700));
    rig.cache.truncate(slot, 150);
    CHECK(chosen(rig, slot, 0, 0).empty());
    CHECK(rig.cache.next_change(slot, {}) == 151);
    CHECK(same(rig.extend(slot, std::span(after).first(1)),
               full.extend(full.sequence(first), std::span(after).first(1))));
    CHECK(all_chosen(rig, slot) == fresh_choice(cache, joined(first, {after[0]})));
    // Within the budget there is nothing to choose.
    rig.cache.truncate(slot, 60);
    CHECK(chosen(rig, slot, 0, 0).empty());
    CHECK(rig.cache.next_change(slot, {}) == 65);
  }

  TEST_CASE(
      "going back a little: no more chunks are read than were chosen, and none within the budget") {
    PolicyRig::Shape shape;
    shape.max_draft_rows = 1;  // a cache that holds the last queries alone
    PolicyRig rig(shape, {retrieval(64, 8)}, kCone);
    const int slot = rig.sequence(tokens(0, 300));
    const Ids before = chosen(rig, slot, 0, 0);
    REQUIRE(before.size() == 56);  // of 64, four tokens of which are after the last whole chunk
    rig.cache.truncate(slot, 296);
    CHECK(chosen(rig, slot, 0, 0) == before);

    Cache recent = retrieval(64, 8);
    recent.retrieval.force_recent = {16};
    for (const int max_draft_rows : {1, 64}) {
      CAPTURE(max_draft_rows);
      shape.max_draft_rows = max_draft_rows;
      PolicyRig short_text(shape, {recent}, kCone);
      const int other = short_text.sequence(tokens(0, 70));
      CHECK(chosen(short_text, other, 0, 0).size() == 40);
      short_text.cache.truncate(other, 60);
      CHECK(chosen(short_text, other, 0, 0).empty());  // all is read
    }
  }

  TEST_CASE("going back over generated tokens gives chunks their places back") {
    PolicyRig rig({}, {retrieval(64, 8)}, kCone);
    const int slot = rig.sequence(tokens(0, 200));
    const std::vector<Ids> before = all_chosen(rig, slot);
    rig.append(slot, tokens(5000, 30));
    CHECK(all_chosen(rig, slot) != before);
    rig.cache.truncate(slot, 200);
    CHECK(all_chosen(rig, slot) == before);
  }

  TEST_CASE("a prompt that goes on after generated text chooses by the true last query") {
    const Cache cache = retrieval(64, 8);
    PolicyRig rig({}, {cache}, kCone);
    const int slot = rig.sequence(tokens(0, 200));
    rig.append(slot, tokens(3000, 30));
    rig.prefill(slot, tokens(1000, 5));
    CHECK(all_chosen(rig, slot) ==
          fresh_choice(cache, joined(joined(tokens(0, 200), tokens(3000, 30)), tokens(1000, 5))));
  }

  TEST_CASE("rounds that accept too few choose again, and only those") {
    Cache cache = retrieval(512, 8);
    cache.retrieval.rebuild = {.alpha = 0.8};
    PolicyRig rig({}, {Cache{}, cache}, kCone);
    const Ids prompt = tokens(0, 600);
    const int good = rig.sequence(prompt, 1), bad = rig.sequence(prompt, 1);
    const std::vector<Ids> before = all_chosen(rig, good);
    Ids text = prompt, own;
    // Each round two tokens are looked at; older ones have less weight, and eight are judged: after
    // the fifth round it is known, and from the commit of the next on in force.
    for (int round = 1; round <= 6; ++round) {
      CAPTURE(round);
      text = joined(text, own);
      own = tokens(8000 + 2 * round, 2);
      rig.cache.report_round(good, round % 2 == 0 ? 5 : 4, 5);
      rig.cache.report_round(bad, 1, 5);
      rig.append(good, own);
      rig.append(bad, own);
      CHECK((all_chosen(rig, bad) == all_chosen(rig, good)) == (round < 6));
    }
    PolicyRig fresh({}, {retrieval(512, 8)}, kCone);
    const int slot = fresh.sequence(text);
    fresh.append(slot, own);
    CHECK(all_chosen(rig, bad) == all_chosen(fresh, slot));
    const std::vector<Ids> now = all_chosen(rig, good);
    for (size_t i = 0; i < now.size(); ++i)
      CHECK(std::equal(now[i].begin(), now[i].end(), before[i].begin()));
  }

  TEST_CASE("choosing again by acceptance is refused where nothing is accepted") {
    Cache cache = retrieval(64, 8);
    cache.retrieval.rebuild = {.alpha = 0.8};
    const auto problem = [&](const std::vector<Cache>& policies) {
      return error_text([&] { const PolicyRig rig({}, policies, kCone); });
    };
    CHECK(problem({cache}) ==
          "cache.retrieval.rebuild: is alpha<0.8, which needs the acceptance rate of a target that "
          "reads the full KV cache");
    CHECK(problem({Cache{}, cache}) == "nothing thrown");
  }

  TEST_CASE("memory: lists, means of all tokens and the newest queries, by name") {
    const kv::Geometry g{
        .n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 16, .dtype = DType::bf16};
    kv::Cache::Spec spec{.geometry = g,
                         .max_seqs = 5,
                         .max_tokens = 500,
                         .total_tokens = 2500,
                         .max_rows = 128,
                         .max_draft_rows = 9,
                         .policies = {Cache{}, retrieval(64, 8)}};
    const auto bytes = [&](const std::string& name) {
      MemoryPlan plan;
      kv::Cache::plan(spec, plan);
      const PlanItem* item = plan.find(name);
      return item == nullptr ? size_t{0} : item->bytes;
    };
    CHECK(bytes("kv/queries") == 5 * 3 * (2 + 9) * 8 * 16 * 2);
    CHECK(bytes("index/1 retrieval.lists") == 5 * 3 * 2 * 64 * 4);
    CHECK(bytes("index/1 retrieval.means") == 5 * 3 * 2 * (512 / 8) * 16 * 2);
    spec.device = {Device::Kind::cuda, 0};
    spec.multiprocessors = 132;
    CHECK(bytes("index/1 retrieval.lists") == 5 * 3 * 2 * (64 / 8) * 4);
    CHECK(bytes("index/1 retrieval.means") == 5 * 3 * 2 * (512 / 8) * 16 * 2);
    CHECK(bytes("index/1 retrieval.counts") == (5 * 2 + 5 + 3) * 4);
    spec.policies = {retrieval(600, 8)};  // no text is that long
    CHECK(bytes("index/retrieval.lists") == 0);
    CHECK(bytes("index/retrieval.means") == 0);
  }
}
