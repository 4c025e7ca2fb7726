#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <map>

#include "error_text.h"
#include "generate_runs.h"
#include "rounds_testing.h"
#include "speculate/draft/lookup_drafter.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;
using decode::Engine;

TEST_SUITE("speculate/speculation") {
  TEST_CASE("greedy text is that of the target alone, for any tree and batch") {
    check_greedy_texts(Pair(), 1e-4);
  }

  TEST_CASE("greedy text of Qwen3 is that of the target alone, with any draft of its vocabulary") {
    const auto target = make_engine(small_model("qwen3-tied"));
    std::vector<decode::Request> requests;
    for (const int n : {3, 40, 70}) requests.push_back(request(random_ids(*target, n, 7)));
    const Generated plain = test::generate(*target, requests, rules(40));
    for (const std::string name : {"qwen3-tied", "qwen2-tied"}) {
      CAPTURE(name);
      const auto draft = make_engine(small_model(name));
      const auto rounds = model_rounds(*target, *draft, tree_of(kBushy));
      CHECK(test::generate(*target, requests, rules(40), rounds.get()).ids == plain.ids);
      CHECK((rounds->stats().accepted > rounds->stats().rounds) == (name == "qwen3-tied"));
    }
  }

  TEST_CASE("a draft that is the target itself is always accepted, at any temperature") {
    check_own_draft(Pair("tiny-16m"), 2);
  }

  TEST_CASE("logits in groups of trees give the text of logits at once") {
    for (const int trees : {1, 3}) check_groups({}, trees);
  }

  TEST_CASE("sampled texts follow the target's distribution, over the borders of rounds") {
    VerifyChoice verify{};
    SUBCASE("sequoia") { verify = VerifyChoice::sequoia; }
    SUBCASE("traversal") { verify = VerifyChoice::traversal; }
    SUBCASE("match") { verify = VerifyChoice::match; }
    // Three tokens at a time, so that texts are few enough to count. The draft is the same model,
    // which sees the last tokens alone: distributions that differ, but not much.
    const auto target = make_engine(small_model("llama-2"));
    const auto draft = make_engine(small_model("llama-2"), {.caches = {streaming(0, 3)}});
    const std::vector<decode::Request> one = {request({5, 17, 100, 3})};
    const auto rounds = model_rounds(*target, *draft, tree_of({6, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0}),
                                     {.verify = verify});
    constexpr int kTexts = 2000, kTokens = 4;
    std::map<Ids, std::array<int, 2>> counts;
    for (int i = 0; i < kTexts; ++i)
      for (const bool speculates : {false, true}) {
        decode::GenerateSpec spec = rules(kTokens, 1.0f, speculates ? i : kTexts + i);
        spec.sampler.rule.top_k = 3;
        const Ids ids =
            test::generate(*target, one, spec, speculates ? rounds.get() : nullptr).ids[0];
        ++counts[ids][speculates ? 1 : 0];
      }
    const RoundStats& s = rounds->stats();
    MESSAGE("accepted " << s.accepted << " in " << s.rounds << " rounds, " << counts.size()
                        << " texts");
    CHECK(s.accepted > s.rounds / 4);
    CHECK(s.accepted < 2 * s.rounds);
    // Two samples of one distribution: chi-square over the texts seen often enough, the others as
    // one.
    double chi = 0, n_cells = 0;
    std::array<int, 2> rare{};
    const auto add = [&](const std::array<int, 2>& c) {
      chi += std::pow(c[0] - c[1], 2) / (c[0] + c[1]);
      ++n_cells;
    };
    for (const auto& [ids, c] : counts) {
      if (c[0] + c[1] >= 20)
        add(c);
      else
        rare = {rare[0] + c[0], rare[1] + c[1]};
    }
    if (rare[0] + rare[1] > 0) add(rare);
    CAPTURE(n_cells);
    CHECK(n_cells > 20);
    CHECK(chi < n_cells - 1 + 4 * std::sqrt(2 * (n_cells - 1)));
  }

  TEST_CASE("texts that share a beginning: read once by both models, the same text") {
    const Pair pair;
    const Ids document = pair.target->tokenizer()->encode(
        "The lamp was lit at dusk. The keeper wrote down the wind and the ships that passed.");
    const Ids first = pair.target->tokenizer()->encode(" Then"),
              second = pair.target->tokenizer()->encode(" A ship");
    std::vector<decode::Request> whole, forks;
    const int pages = pair.draft->cache().store().free_pages();
    const int slot = pair.target->cache().create();
    const decode::SeqTokens text[] = {{slot, document, false}};
    pair.target->prefill(text, {});
    for (const Ids& end : {first, second}) {
      Ids ids = document;
      ids.insert(ids.end(), end.begin(), end.end());
      whole.push_back(request(ids));
      forks.push_back({.prefix_slot = slot, .prefix = document, .tokens = end});
    }
    {
      const auto rounds = model_rounds(*pair.target, *pair.draft, tree_of(kBushy));
      rounds->share(document);
      const Generated g = test::generate(*pair.target, forks, rules(24), rounds.get());
      CHECK(g.ids == test::generate(*pair.target, whole, rules(24)).ids);
      CHECK(rounds->stats().accepted > 0);
    }
    CHECK(pair.draft->cache().store().free_pages() == pages);
  }

  TEST_CASE("a lone root draws what plain sampling draws, whatever the batch mates") {
    const Pair pair;
    const auto requests = pair.requests(3);
    const auto rounds = model_rounds(*pair.target, *pair.draft, chain_tree(1));
    decode::GenerateSpec spec = rules(24, 0.8f, 11);
    spec.sampler.rule.top_p = 0.9;
    const Generated plain = test::generate(*pair.target, requests, spec);
    const Generated g = test::generate(*pair.target, requests, spec, rounds.get());
    CHECK(g.ids == plain.ids);
  }

  TEST_CASE("sampled text is the same on every run and for other batch mates") {
    const Pair pair;
    const auto requests = pair.requests(3);
    const auto rounds = model_rounds(*pair.target, *pair.draft, tree_of(kBushy));
    const auto text = [&](size_t n) {
      const std::vector<decode::Request> some(requests.begin(),
                                              requests.begin() + static_cast<long>(n));
      return test::generate(*pair.target, some, rules(24, 0.7f, 3), rounds.get()).ids;
    };
    const auto three = text(3);
    CHECK(text(3) == three);
    CHECK(text(1)[0] == three[0]);
  }

  TEST_CASE("text ends at a stop inside an accepted path, and at the length asked for") {
    const Pair pair("tiny-16m");
    const auto requests = pair.requests(2);
    const Generated plain = test::generate(*pair.target, requests, rules(20));
    const auto rounds = model_rounds(*pair.target, *pair.draft, chain_tree(8));
    check_stops(pair, *rounds, requests, plain);
    CHECK(test::generate(*pair.target, requests, rules(7), rounds.get()).ids ==
          test::generate(*pair.target, requests, rules(7)).ids);
  }

  TEST_CASE("prompt lookup: any text is the one of plain sampling, token by token") {
    const RoundStats s = check_look_up(Pair());
    CHECK(s.drafted < s.rounds * 6);
  }

  TEST_CASE("alternatives of tokens are refused") {
    const Pair pair;
    const auto rounds = model_rounds(*pair.target, *pair.draft, chain_tree(2));
    decode::GenerateSpec spec = rules(4);
    spec.sampler.top_logprobs = 3;
    CHECK_THROWS_WITH_AS(test::generate(*pair.target, pair.requests(1), spec, rounds.get()),
                         "output.top_logprobs: is 3, which speculative decoding does not support",
                         Error);
  }
}
