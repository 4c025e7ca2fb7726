#include <doctest/doctest.h>

#include <cmath>

#include "decode/precision_runs.h"
#include "engine_pair.h"
#include "error_text.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

/// More nodes than a mask word has bits, on 8 levels.
TokenTree tree_of_80() {
  std::vector<int> n_children = {7, 4, 3, 2, 1, 1, 1, 1};
  for (int node = 8; node < 80; ++node) n_children.push_back(node < 8 + 59 ? 1 : 0);
  return tree_of(n_children);
}

}  // namespace

TEST_SUITE("gpu/rounds") {
  TEST_CASE("greedy text is that of the target alone, for any tree and batch") {
    check_greedy_texts(Pair("tiny-2m", kGpu), 1e-3);
  }

  TEST_CASE("rounds are those of the CPU: drafts, paths and tokens of sampled text") {
    // In f32 the devices' logits differ by rounding alone, which seldom changes a draw: texts agree
    // for a while, and nearly always to the end.
    VerifyChoice verify{};
    SUBCASE("sequoia") { verify = VerifyChoice::sequoia; }
    SUBCASE("traversal") { verify = VerifyChoice::traversal; }
    const Pair cpu("tiny-2m"), gpu("tiny-2m", kGpu);
    int same = 0, n = 0, equal_rounds = 0, comparable = 0;
    for (const float temperature : {0.0f, 0.6f, 1.0f})
      for (const bool penalty : {false, true}) {
        decode::GenerateSpec spec = rules(48, temperature, 7);
        if (penalty) spec.sampler.rule.repetition_penalty = 1.2f;
        if (!penalty) spec.sampler.rule.top_p = 0.9;
        const auto text = [&](const Pair& pair) {
          const auto rounds =
              model_rounds(*pair.target, *pair.draft, tree_of(kBushy), {.verify = verify});
          Generated g = test::generate(*pair.target, pair.requests(4), spec, rounds.get());
          return std::pair(g.ids, rounds->stats().accepted_hist);
        };
        const auto [want, want_hist] = text(cpu);
        const auto [got, got_hist] = text(gpu);
        if (got == want) {
          ++comparable;
          equal_rounds += got_hist == want_hist ? 1 : 0;
        }
        for (size_t i = 0; i < want.size(); ++i, ++n) {
          same += got[i] == want[i] ? 1 : 0;
          CHECK(Ids(got[i].begin(), got[i].begin() + 4) ==
                Ids(want[i].begin(), want[i].begin() + 4));
        }
      }
    MESSAGE(same << " of " << n << " texts are equal to the end");
    CHECK(same >= n - 3);
    // A draft drawn otherwise changes what is accepted, and no text.
    CHECK(comparable >= 3);
    CHECK(equal_rounds >= comparable - 1);
  }

  TEST_CASE("another seed writes its own text with the graphs of the first") {
    const Pair pair("tiny-2m", kGpu);
    const auto rounds = [&] {
      return model_rounds(*pair.target, *pair.draft, tree_of(kBushy),
                          {.verify = VerifyChoice::traversal});
    };
    const auto text = [&](Rounds& by, int64_t seed) {
      return test::generate(*pair.target, pair.requests(4), rules(30, 1.0f, seed), &by).ids;
    };
    const auto one = rounds();
    const auto first = text(*one, 1), second = text(*one, int64_t{1} << 40 | 2);
    CHECK(first != second);
    CHECK(second == text(*rounds(), int64_t{1} << 40 | 2));
    CHECK(first == text(*one, 1));
    // Plain decoding shares its graphs alike.
    const auto plain = [&](decode::Engine& engine, int64_t seed) {
      return test::generate(engine, pair.requests(4), rules(30, 1.0f, seed)).ids;
    };
    const Pair other("tiny-2m", kGpu);
    CHECK(plain(*pair.target, 1) != plain(*pair.target, 2));
    CHECK(plain(*pair.target, 2) == plain(*other.target, 2));
  }

  TEST_CASE("a draft that is the target itself is always accepted, at any temperature") {
    check_own_draft(Pair("tiny-16m", kGpu), 4);
  }

  TEST_CASE("logits in groups of trees give the text of logits at once") { check_groups(kGpu, 3); }

  TEST_CASE("a tree wider than a mask word, over the ends of pages, one sequence and four") {
    Setup setup;
    setup.logit_rows = 4 * 80;
    const Pair pair("tiny-2m", kGpu, setup);
    const TokenTree tree = tree_of_80();
    for (const size_t n : {size_t{1}, size_t{4}}) {
      CAPTURE(n);
      const auto requests = pair.requests(n);
      const Generated plain = test::generate(*pair.target, requests, rules(150));
      const auto rounds = model_rounds(*pair.target, *pair.draft, tree);
      const Generated g = test::generate(*pair.target, requests, rules(150), rounds.get());
      CHECK(g.ids == plain.ids);
      CHECK(rounds->stats().tokens_per_round() > 2);
    }
  }

  TEST_CASE("prompt lookup: any text is the one of plain sampling, token by token") {
    check_look_up(Pair("tiny-2m", kGpu));
  }

  TEST_CASE("a drafter from outside the library") { check_table_drafter(Pair("tiny-2m", kGpu)); }

  TEST_CASE("a target that drafts for itself under a window: its own greedy text") {
    check_narrow_window(SelfPair(12, kGpu));
  }

  TEST_CASE("by floors: nothing passes, all of it does, and a draft that is right is taken whole") {
    const SelfPair narrow(12, kGpu), wide(4096, kGpu);
    std::unique_ptr<Rounds> rounds;
    const auto run = [&](const SelfPair& pair, VerifyChoice verify, double floor,
                         const TokenTree& tree) {
      rounds = model_rounds(*pair.engine, {*pair.engine, {.keys = 1}}, tree,
                            {.verify = verify, .floor = {.probability = floor}});
      return generate(*pair.engine, pair.requests(), rules(60), rounds.get()).ids;
    };
    const auto plain = generate(*narrow.engine, narrow.requests(), rules(60)).ids;
    for (const TokenTree& tree : {chain_tree(6), tree_of(kBushy)}) {
      CHECK(run(narrow, VerifyChoice::floor, 1.5, tree) == plain);
      CHECK(rounds->stats().accepted == 0);
    }
    (void)run(narrow, VerifyChoice::floor, 0, chain_tree(6));
    CHECK(rounds->stats().accepted == rounds->stats().drafted);
    CHECK(run(wide, VerifyChoice::floor_or_argmax, 0.1, chain_tree(6)) == plain);
    CHECK(rounds->stats().accepted >= rounds->stats().drafted - 2);
  }

  TEST_CASE("a target that drafts for itself by few chosen keys: its own greedy text") {
    for (const int refresh : {0, 1, 7}) {
      CAPTURE(refresh);
      recipe::Cache drafts_by = snapkv(5, 2);
      drafts_by.sinks = {1};
      drafts_by.snapkv.refresh = {refresh};
      check_narrow_window(SelfPair(drafts_by, kGpu));
    }
  }

  TEST_CASE("a target that drafts by chunks of keys: its own greedy text") {
    for (const recipe::Rebuild rebuild :
         {recipe::Rebuild{}, recipe::Rebuild{.tokens = 7}, recipe::Rebuild{.alpha = 0.9}}) {
      CAPTURE(recipe::yaml_text(rebuild));
      recipe::Cache drafts_by = retrieval(5, 2);
      drafts_by.retrieval.rebuild = rebuild;
      check_narrow_window(SelfPair(drafts_by, kGpu));
    }
  }

  TEST_CASE("a target that drafts by what it verified: its own greedy text") {
    for (const int budget : {6, 40}) {
      CAPTURE(budget);
      check_narrow_window(SelfPair(verified(budget, 2), kGpu), budget == 6);
    }
  }

  TEST_CASE("chains whose length each round chooses: greedy text is the target's") {
    const SelfPair self(12, kGpu);
    check_chosen_lengths(*self.engine, {*self.engine, {.keys = 1}}, self.requests());
    const Pair pair("tiny-2m", kGpu);
    check_chosen_lengths(*pair.target, *pair.draft, pair.requests(4));
  }

  TEST_CASE("drafts by chosen keys are those of the CPU") {
    recipe::Cache drafts_by;
    SUBCASE("snapkv") { drafts_by = snapkv(60, 16); }
    SUBCASE("verified") { drafts_by = verified(60, 16); }
    const SelfPair cpu(drafts_by, {}, DType::f32, {}, target_on(kGpu)), gpu(drafts_by, kGpu);
    const Ids before = real_text(150);
    int same = 0, n = 0;
    for (const float temperature : {0.0f, 1.0f})
      for (const bool tree : {false, true}) {
        CAPTURE(temperature);
        const auto run = [&](const SelfPair& pair) {
          // The rule that `auto` chooses differs between devices.
          const auto rounds = model_rounds(*pair.engine, {*pair.engine, {.keys = 1}},
                                           tree ? tree_of(kBushy) : chain_tree(4),
                                           {.verify = VerifyChoice::sequoia});
          auto requests = pair.requests();
          for (decode::Request& r : requests)  // beyond the budget
            r.tokens.insert(r.tokens.begin(), before.begin(), before.end());
          const Generated g =
              test::generate(*pair.engine, requests, rules(64, temperature, 3), rounds.get());
          return std::pair(g.ids, rounds->stats().accepted_hist);
        };
        const auto want = run(cpu), got = run(gpu);
        same += want == got ? 1 : 0;
        ++n;
        CHECK(want.first[0] == got.first[0]);
      }
    MESSAGE(same << " of " << n << " runs accept the same, round by round");
    CHECK(same >= n - 1);
  }

  TEST_CASE("by chosen keys that are all of the text nearly every child is accepted") {
    check_wide_window(SelfPair(snapkv(4096, 32), kGpu), 0.999, 8);
    check_wide_window(SelfPair(snapkv(4096, 32), kGpu, DType::bf16), 0.995, 8);
    check_wide_window(SelfPair(verified(4096, 32), kGpu), 0.999, 8);
    check_wide_window(SelfPair(retrieval(4096, 8), kGpu), 0.999, 8);
  }

  TEST_CASE("under a window as wide as the text nearly every child is accepted") {
    check_wide_window(SelfPair(4096, kGpu), 0.999, 8);
    check_wide_window(SelfPair(4096, kGpu, DType::bf16), 0.995, 8);
  }

  TEST_CASE("a batch that shrinks records few shapes, and its texts stay") {
    const Pair pair("tiny-2m", kGpu);
    std::vector<decode::Request> requests = pair.requests(4);
    const auto rounds = model_rounds(*pair.target, *pair.draft, tree_of(kBushy));
    const Generated plain = test::generate(*pair.target, requests, rules(30));
    for (size_t n = 4; n > 0; --n) {
      requests.resize(n);
      const Generated g = test::generate(*pair.target, requests, rules(30), rounds.get());
      CHECK(g.ids == std::vector<Ids>(plain.ids.begin(), plain.ids.begin() + static_cast<long>(n)));
    }
  }

  TEST_CASE("text after a shared beginning, and stops inside an accepted path") {
    const Pair pair("tiny-16m", kGpu);
    const Ids prefix = pair.target->tokenizer()->encode(kPrompts[2]);
    const int slot = pair.target->cache().create();
    const decode::SeqTokens text[] = {{slot, prefix, true}};
    pair.target->prefill(text, {});
    const std::vector<decode::Request> requests = {
        {.prefix_slot = slot, .prefix = prefix, .tokens = {}},
        {.prefix_slot = slot, .prefix = prefix, .tokens = {17, 40}}};
    const Generated plain = test::generate(*pair.target, requests, rules(20));
    const auto rounds = model_rounds(*pair.target, *pair.draft, chain_tree(8));
    rounds->share(prefix);
    CHECK(test::generate(*pair.target, requests, rules(20), rounds.get()).ids == plain.ids);
    check_stops(pair, *rounds, requests, plain);
    pair.target->cache().release(slot);
  }

  TEST_CASE("simulated acceptance follows its vector") {
    const Pair pair("tiny-2m", kGpu);
    AcceptanceVector vector;
    vector.rows = {{0.6, 0.2}};
    const TokenTree tree = tree_of({2, 2, 1, 1, 0, 0, 0});
    const auto rounds =
        model_rounds(*pair.target, *pair.draft, tree, {.on_round = {}, .simulate = vector});
    for (int seed = 0; seed < 6; ++seed)
      (void)test::generate(*pair.target, pair.requests(4), rules(100, 0, seed), rounds.get());
    const RoundStats& s = rounds->stats();
    // At most 3 accepted a round, so its deviation is below 1.5.
    CHECK(s.rounds > 500);
    CHECK(std::abs(s.tokens_per_round() - expected_tokens(tree, vector)) <
          4 * 1.5 / std::sqrt(static_cast<double>(s.rounds)));
  }
}
