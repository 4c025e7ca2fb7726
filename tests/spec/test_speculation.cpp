#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <map>

#include "error_text.h"
#include "generate_runs.h"
#include "spec/lookup_drafter.h"
#include "spec/model_drafter.h"
#include "spec/speculation.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::spec;
using decode::Engine;

namespace {

const char* const kPrompts[] = {"The keeper of the lighthouse", "Wind from the north, and",
                                "On the third day the lamp was lit before the fog came in.", "Log",
                                "Once upon a time there was a", "It is not true that"};

/// Numbers of children, breadth first.
TokenTree tree_of(const std::vector<int>& n_children) { return tree_of_children(n_children, "test"); }
const std::vector<int> kBushy = {3, 2, 1, 0, 2, 0, 1, 0, 1, 0, 0};

/// Plain text and that of speculation, by the same engines and requests.
struct Pair {
  std::unique_ptr<Engine> target = make_engine(tiny_model("tiny-16m"));
  std::unique_ptr<Engine> draft;

  explicit Pair(const std::string& drafts = "tiny-2m") : draft(make_engine(tiny_model(drafts))) {}

  std::vector<decode::Request> requests(size_t n) const {
    std::vector<decode::Request> all;
    for (size_t i = 0; i < n; ++i)
      all.push_back(request(target->tokenizer()->encode(kPrompts[i])));
    return all;
  }
};

decode::GenerateSpec rules(int max_tokens, float temperature = 0, int64_t seed = 0) {
  decode::GenerateSpec spec;
  spec.max_tokens = max_tokens;
  spec.sampler.rule.temperature = temperature;
  spec.sampler.seed = seed;
  return spec;
}

}  // namespace

TEST_SUITE("spec/speculation") {
  TEST_CASE("greedy text is that of the target alone, for any tree and batch") {
    const Pair pair;
    const auto requests = pair.requests(6);  // four at a time, the others as room comes
    const Generated plain = test::generate(*pair.target, requests, rules(40));
    const int pages = pair.target->cache().store().free_pages();
    const int draft_pages = pair.draft->cache().store().free_pages();
    for (const TokenTree& tree : {chain_tree(1), chain_tree(2), chain_tree(5), tree_of({4, 0, 0, 0, 0}), tree_of(kBushy)}) {
      CAPTURE(tree.size());
      CAPTURE(tree.levels());
      ModelDrafter drafter(*pair.draft, tree);
      Speculation speculation(*pair.target, drafter);
      const Generated g = test::generate(*pair.target, requests, rules(40), &speculation);
      for (size_t i = 0; i < requests.size(); ++i) {
        CAPTURE(i);
        CHECK(g.ids[i] == plain.ids[i]);
        CHECK(g.text[i] == plain.text[i]);
        for (size_t t = 0; t < g.events[i].size(); ++t)
          CHECK(g.events[i][t].logprob == doctest::Approx(plain.events[i][t].logprob).epsilon(1e-4));
      }
      const RoundStats& s = speculation.stats();
      CHECK(s.drafted == s.rounds * (tree.size() - 1));
      CHECK(s.emitted == s.accepted + s.rounds);
      CHECK(s.emitted >= 6 * 39);  // the first token comes from the prompt; the last rounds may overshoot
      int64_t sum = 0;
      for (const int64_t n : s.accepted_hist) sum += n;
      CHECK(sum == s.rounds);
      if (tree.size() > 1) CHECK(s.accepted > 0);
      CHECK(pair.target->cache().store().free_pages() == pages);
      CHECK(pair.draft->cache().store().free_pages() == draft_pages);
    }
  }

  TEST_CASE("a draft that is the target itself is always accepted, at any temperature") {
    const Pair pair("tiny-16m");
    for (const float temperature : {0.0f, 0.6f, 1.0f}) {
      CAPTURE(temperature);
      ModelDrafter drafter(*pair.draft, chain_tree(4));
      Speculation speculation(*pair.target, drafter);
      (void)test::generate(*pair.target, pair.requests(3), rules(32, temperature, 5), &speculation);
      const RoundStats& s = speculation.stats();
      // Rows of one forward differ by rounding from rows of another: R and D part by that much.
      CHECK(s.accepted >= s.drafted - 2);
    }
  }

  TEST_CASE("sampled texts follow the target's law, over the borders of rounds") {
    // The target may draw three tokens at a time, the draft, the same model, all 320: laws that differ, and
    // few enough texts to count.
    const auto target = make_engine(small_model("llama-2"));
    const auto draft = make_engine(small_model("llama-2"));
    const std::vector<decode::Request> one = {request({5, 17, 100, 3})};
    ModelDrafter drafter(*draft, tree_of({6, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0}));
    Speculation speculation(*target, drafter);
    constexpr int kTexts = 2000, kTokens = 4;
    std::map<Ids, std::array<int, 2>> counts;
    for (int i = 0; i < kTexts; ++i)
      for (const bool speculates : {false, true}) {
        decode::GenerateSpec spec = rules(kTokens, 1.0f, speculates ? i : kTexts + i);
        spec.sampler.rule.top_k = 3;
        const Ids ids =
            test::generate(*target, one, spec, speculates ? &speculation : nullptr).ids[0];
        ++counts[ids][speculates ? 1 : 0];
      }
    const RoundStats& s = speculation.stats();
    MESSAGE("accepted " << s.accepted << " in " << s.rounds << " rounds, " << counts.size() << " texts");
    CHECK(s.accepted > s.rounds / 4);
    CHECK(s.accepted < 2 * s.rounds);
    // Two samples of one law: chi-square over the texts seen often enough, the others as one.
    double chi = 0, n_cells = 0;
    std::array<int, 2> rare{};
    const auto add = [&](const std::array<int, 2>& c) {
      chi += std::pow(c[0] - c[1], 2) / (c[0] + c[1]);
      ++n_cells;
    };
    for (const auto& [ids, c] : counts) {
      if (c[0] + c[1] >= 20) add(c);
      else rare = {rare[0] + c[0], rare[1] + c[1]};
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
    const Ids first = pair.target->tokenizer()->encode(" Then"), second = pair.target->tokenizer()->encode(" A ship");
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
      ModelDrafter drafter(*pair.draft, tree_of(kBushy));
      drafter.share(document);
      Speculation speculation(*pair.target, drafter);
      const Generated g = test::generate(*pair.target, forks, rules(24), &speculation);
      CHECK(g.ids == test::generate(*pair.target, whole, rules(24)).ids);
      CHECK(speculation.stats().accepted > 0);
    }
    CHECK(pair.draft->cache().store().free_pages() == pages);
  }

  TEST_CASE("a lone root draws what plain sampling draws, whatever the batch mates") {
    const Pair pair;
    const auto requests = pair.requests(3);
    ModelDrafter drafter(*pair.draft, chain_tree(1));
    Speculation speculation(*pair.target, drafter);
    decode::GenerateSpec spec = rules(24, 0.8f, 11);
    spec.sampler.rule.top_p = 0.9;
    const Generated plain = test::generate(*pair.target, requests, spec);
    const Generated g = test::generate(*pair.target, requests, spec, &speculation);
    CHECK(g.ids == plain.ids);
  }

  TEST_CASE("sampled text is the same on every run and for other batch mates") {
    const Pair pair;
    const auto requests = pair.requests(3);
    ModelDrafter drafter(*pair.draft, tree_of(kBushy));
    Speculation speculation(*pair.target, drafter);
    const auto text = [&](size_t n) {
      const std::vector<decode::Request> some(requests.begin(), requests.begin() + static_cast<long>(n));
      return test::generate(*pair.target, some, rules(24, 0.7f, 3), &speculation).ids;
    };
    const auto three = text(3);
    CHECK(text(3) == three);
    CHECK(text(1)[0] == three[0]);
  }

  TEST_CASE("text ends at a stop inside an accepted path, and at the length asked for") {
    const Pair pair("tiny-16m");
    const auto requests = pair.requests(2);
    const Generated plain = test::generate(*pair.target, requests, rules(20));
    ModelDrafter drafter(*pair.draft, chain_tree(8));
    Speculation speculation(*pair.target, drafter);
    for (const size_t at : {size_t{2}, size_t{9}, size_t{15}}) {
      decode::GenerateSpec spec = rules(20);
      spec.stop_ids = {plain.ids[0][at]};
      const Generated want = test::generate(*pair.target, requests, spec);
      const Generated got = test::generate(*pair.target, requests, spec, &speculation);
      CHECK(got.ids == want.ids);
      CHECK(got.finish == want.finish);
    }
    CHECK(test::generate(*pair.target, requests, rules(7), &speculation).ids ==
          test::generate(*pair.target, requests, rules(7)).ids);
  }

  TEST_CASE("look-up proposes what followed the longest, latest agreement") {
    LookupDrafter drafter(3, 4);
    const auto proposed = [&](const Ids& text) {
      const decode::DrawSeq seq[] = {{.seq = 0, .slot = 0, .position = static_cast<int>(text.size()), .tokens = text}};
      const Proposal& p = drafter.propose(seq)[0];
      CHECK(p.tokens[0] == text.back());
      CHECK(p.tree->size() == static_cast<int>(p.tokens.size()));
      CHECK(p.tree->levels() == p.tree->size());
      return Ids(p.tokens.begin() + 1, p.tokens.end());
    };
    CHECK(proposed({7}).empty());
    CHECK(proposed({1, 2, 3, 4}).empty());
    CHECK(proposed({1, 2, 3, 1}) == Ids{2, 3, 1});
    CHECK(proposed({5, 5}) == Ids{5});
    // Two agree at place 1 with 9 behind them, one agrees later with 8 behind it.
    CHECK(proposed({1, 2, 9, 2, 8, 1, 2}) == Ids{9, 2, 8, 1});
    // The latest of equals; at most four.
    CHECK(proposed({1, 6, 1, 7, 3, 3, 3, 3, 1}) == Ids{7, 3, 3, 3});
  }

  TEST_CASE("look-up: any text is the one of plain sampling, token by token") {
    const Pair pair;
    const auto requests = pair.requests(4);
    LookupDrafter drafter(3, 6);
    Speculation speculation(*pair.target, drafter);
    for (const float temperature : {0.0f, 0.7f}) {
      CAPTURE(temperature);
      const Generated plain = test::generate(*pair.target, requests, rules(60, temperature, 9));
      const Generated g = test::generate(*pair.target, requests, rules(60, temperature, 9), &speculation);
      CHECK(g.ids == plain.ids);
    }
    CHECK(speculation.stats().accepted > 0);
    CHECK(speculation.stats().drafted < speculation.stats().rounds * 6);
  }

  TEST_CASE("alternatives of tokens are refused") {
    const Pair pair;
    ModelDrafter drafter(*pair.draft, chain_tree(2));
    Speculation speculation(*pair.target, drafter);
    decode::GenerateSpec spec = rules(4);
    spec.sampler.top_logprobs = 3;
    CHECK_THROWS_WITH_AS(test::generate(*pair.target, pair.requests(1), spec, &speculation),
                         "output.top_logprobs: is 3, but speculation reports no alternatives", Error);
  }
}
