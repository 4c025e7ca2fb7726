#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "error_text.h"
#include "nested_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

TEST_SUITE("speculate/nested") {
  TEST_CASE("f32: greedy text is the target's own, whatever few keys the levels within read") {
    check_nested_texts(NestedPair(retrieval(5, 2), {}));
    check_nested_texts(NestedPair(streaming(1, 12), {}, streaming(1, 20)));
  }

  TEST_CASE("f32: the same where rounds are laid out ahead of the last one's end") {
    check_nested_texts(NestedPair(retrieval(5, 2), {}, streaming(1, 20)), {.ahead = true});
  }

  TEST_CASE("f32: readings of all keys and the target as draft: everything is accepted") {
    check_nested_own_draft({}, 0);
  }

  TEST_CASE("simulated acceptance of both levels follows its vectors") {
    check_nested_simulation({});
  }

  TEST_CASE("sampled text does not depend on when a round is laid out") {
    // Windows follow the text on the device; what is chosen follows what the host has heard.
    const NestedPair pair(streaming(1, 12), {}, streaming(1, 20));
    for (const NestedCase& c : nested_cases()) {
      CAPTURE(c.tree.size());
      auto how = rules(60, 0.8F, 11);
      how.sampler.rule.top_p = 0.9;
      const auto one = pair.rounds(c.tree, c.shape, {}, {.ahead = false});
      const auto two = pair.rounds(c.tree, c.shape, {}, {.ahead = true});
      CHECK(generate(*pair.target, pair.requests(), how, two.get()).ids ==
            generate(*pair.target, pair.requests(), how, one.get()).ids);
    }
  }

  TEST_CASE("f32: a small model under a window drafts behind texts of any length") {
    const NestedPair pair(retrieval(48, 8), {}, streaming(4, 60));
    const Ids text = pair.target->tokenizer()->encode(
        "The keeper of the lighthouse wrote in the log that the wind came from the north. ");
    Ids ids;
    while (ids.size() < 300) ids.insert(ids.end(), text.begin(), text.end());
    for (int n = 150; n < 150 + kPageTokens; ++n) {
      CAPTURE(n);
      const std::vector<decode::Request> one = {request({ids.begin(), ids.begin() + n})};
      const auto rounds = pair.rounds(chain_tree(2), {.rounds = 2, .enough = 3});
      CHECK(generate(*pair.target, one, rules(6), rounds.get()).ids ==
            generate(*pair.target, one, rules(6)).ids);
      CHECK(rounds->stats_within()->drafted > 0);
    }
  }

  TEST_CASE("f32: logits of one level that are not numbers end the run with one line") {
    for (const float temperature : {0.0F, 0.8F}) {
      CAPTURE(temperature);
      const NestedPair pair(retrieval(9, 2), {});
      const auto requests = pair.requests();
      const auto plain = generate(*pair.target, requests, rules(60, temperature));
      const auto rounds = pair.rounds(tree_of({2, 1, 0, 0}), {.rounds = 3, .enough = 5});
      int n = 0;
      decode::GenerateEvents events;
      events.on_token = [&](const decode::TokenEvent&) {
        // The small model's values in all of its memory, in the midst of the texts.
        if (++n != 50) return;
        const Tensor v = pair.draft->cache().store().v(0);
        std::fill_n(v.as<float>(), v.elements(), std::numeric_limits<float>::quiet_NaN());
      };
      try {
        decode::generate(*pair.target, *rounds, requests, rules(60, temperature), events);
        FAIL("it went on");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::numeric);
        CHECK(std::string(e.what()).find("holds NaN or infinity") != std::string::npos);
        CHECK_FALSE(e.hint_text().empty());
      }
      CHECK(n >= 50);
      // The target is as it was.
      CHECK(generate(*pair.target, requests, rules(60, temperature)).ids == plain.ids);
    }
  }

  TEST_CASE("a repetition penalty bears on tentative tokens too") {
    const NestedPair pair(retrieval(9, 2), {});
    for (const NestedCase& c : nested_cases()) {
      CAPTURE(c.tree.size());
      auto how = rules(60);
      how.sampler.rule.repetition_penalty = 1.3F;
      const auto rounds = pair.rounds(c.tree, c.shape);
      CHECK(generate(*pair.target, pair.requests(), how, rounds.get()).ids ==
            generate(*pair.target, pair.requests(), how).ids);
      // Without it many of these would be refused.
      CHECK(rounds->stats().share_of_tested() > 0.5);
    }
  }
}

TEST_SUITE("speculate/nested lookup") {
  TEST_CASE("f32: greedy text is the target's own, whatever few keys the rounds within read") {
    check_nested_lookup_texts(SelfPair(retrieval(5, 2), {}));
    check_nested_lookup_texts(SelfPair(streaming(1, 12), {}), {.ahead = true});
  }

  TEST_CASE("f32: readings of all keys: everything is accepted") {
    check_nested_lookups_kept({}, 0);
  }

  TEST_CASE("a repetition penalty bears on texts that are looked up") {
    const SelfPair pair(retrieval(9, 2), {});
    auto how = rules(30);
    how.sampler.rule.repetition_penalty = 1.3F;
    const auto rounds = lookups_within(pair, 3, {.rounds = 3, .enough = 5});
    CHECK(generate(*pair.engine, quoting_requests(pair), how, rounds.get()).ids ==
          generate(*pair.engine, quoting_requests(pair), how).ids);
    CHECK(rounds->stats_within()->drafted > 0);
  }

  TEST_CASE("sampled text does not depend on the batch") {
    const SelfPair pair(streaming(1, 12), {});
    const auto requests = quoting_requests(pair);
    decode::GenerateSpec how = rules(24, 0.7F, 4);
    const auto rounds = lookups_within(pair, 4, {.rounds = 3, .enough = 5});
    how.max_active = 4;
    const Generated many = generate(*pair.engine, requests, how, rounds.get());
    how.max_active = 1;
    CHECK(generate(*pair.engine, requests, how, rounds.get()).ids == many.ids);
  }
}
