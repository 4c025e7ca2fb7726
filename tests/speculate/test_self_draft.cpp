#include <doctest/doctest.h>

#include "error_text.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

TEST_SUITE("speculate/self-draft") {
  TEST_CASE("f32: a window as wide as the text proposes the target's own tokens") {
    check_wide_window(SelfPair(4096, {}), 1, 1);
  }

  TEST_CASE("f32: under a narrow window greedy text is that of the target's own reading") {
    check_narrow_window(SelfPair(12, {}));
  }

  TEST_CASE("f32: snapkv with room for the whole text proposes the target's own tokens") {
    check_wide_window(SelfPair(snapkv(4096, 32), {}), 1, 1);
  }

  TEST_CASE("f32: snapkv with a small budget, chosen once or again: the text is the target's") {
    for (const int refresh : {0, 5}) {
      CAPTURE(refresh);
      recipe::Cache drafts_by = snapkv(5, 2);
      drafts_by.sinks = {1};
      drafts_by.snapkv.refresh = {refresh};
      check_narrow_window(SelfPair(drafts_by, {}));
    }
  }

  TEST_CASE("f32: retrieval with room for the whole text proposes the target's own tokens") {
    check_wide_window(SelfPair(retrieval(4096, 8), {}), 1, 1);
  }

  TEST_CASE("f32: retrieval of two chunks, chosen once or again: the text is the target's") {
    for (const recipe::Rebuild rebuild :
         {recipe::Rebuild{}, recipe::Rebuild{.tokens = 5}, recipe::Rebuild{.alpha = 0.9}}) {
      CAPTURE(recipe::yaml_text(rebuild));
      recipe::Cache drafts_by = retrieval(5, 2);
      drafts_by.retrieval.rebuild = rebuild;
      check_narrow_window(SelfPair(drafts_by, {}));
    }
  }

  TEST_CASE("a prefix that sequences share is read once, by both readings") {
    const SelfPair pair(12, {});
    decode::Engine& engine = *pair.engine;
    const Ids prefix = engine.tokenizer()->encode(kPrompts[2]);
    const int slot = engine.cache().create(engine.cache().all_readers());
    const decode::SeqTokens text[] = {{slot, prefix, true}};
    engine.prefill(text, {});
    const std::vector<decode::Request> requests = {
        {.prefix_slot = slot, .prefix = prefix, .tokens = {}},
        {.prefix_slot = slot, .prefix = prefix, .tokens = {17, 40}}};
    const auto rounds = pair.rounds(chain_tree(4));
    rounds->share(prefix);  // nothing to do
    const Generated plain = test::generate(engine, requests, rules(30));
    CHECK(test::generate(engine, requests, rules(30), rounds.get()).ids == plain.ids);
    CHECK(rounds->stats().accepted > 0);
  }

  TEST_CASE("f32: chains whose length each round chooses: greedy text is the target's") {
    const SelfPair self(12, {});
    check_chosen_lengths(*self.engine, {*self.engine, {.keys = 1}}, self.requests());
    const Pair pair;
    check_chosen_lengths(*pair.target, *pair.draft, pair.requests(4));
  }

  TEST_CASE("a drafter from outside the library") { check_table_drafter(Pair()); }

  TEST_CASE("a reading without trees is refused by name") {
    recipe::Cache topk;
    topk.kind = recipe::CacheKind::topk;
    const auto engine = make_engine(tiny_model("tiny-2m"), {.caches = {{}, topk}});
    CHECK_THROWS_WITH_AS((void)model_rounds(*engine, {*engine, {.keys = 1}}, tree_of({2, 0, 0})),
                         "cache.kind: is topk, which does not support token trees, in tiny-2m",
                         Error);
  }
}
