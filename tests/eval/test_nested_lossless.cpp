// Rounds within rounds are lossless by texts of the engines themselves. A biased rule within them
// shows in the text of the rounds around.
#include <doctest/doctest.h>

#include "chain_rule.h"
#include "eval/lossless.h"
#include "nested_testing.h"
#include "speculate/draft/model_drafter.h"
#include "speculate/draft/nested_drafter.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::eval;
using test::Ids;

namespace {

/// All three levels read differently after a prompt of 36 tokens, which both models continue with
/// a few likely tokens, but not with the same ones.
struct Levels : NestedPair {
  Ids prompt;
  int slot;

  /// budget, window  keys in the middle and within
  Levels(int max_seqs, int budget, int window)
      : NestedPair(retrieval(budget, 2), {}, streaming(1, window - 1), "tiny-2m",
                   {.max_seqs = max_seqs + 2, .max_tokens = 128}),
        prompt(varied_prompts(target->files(), 29, 5).back()),
        slot(target->cache().create(target->cache().all_readers())) {
    const decode::SeqTokens whole[] = {{slot, prompt, false}};
    target->prefill(whole, {});
  }

  /// Of four tokens after the prompt, of which all but the first come from rounds.
  DistributionCheck check(speculate::Rounds& rounds, int batch, int texts, float temperature,
                          double top_p) {
    rounds.share(prompt);
    decode::GenerateSpec how = rules(4, temperature, 0);
    how.max_active = batch;
    how.sampler.rule.top_p = top_p;
    return check_distribution(*target, rounds, prompt, slot, texts, how);
  }
};

/// Two or three tokens by up to two rounds within, so that every text takes several rounds around.
constexpr speculate::NestedShape kShape{.rounds = 2, .enough = 2};

struct Case {
  speculate::TokenTree tree;
  float temperature;
  double top_p;
};

void check_lossless(int batch, int texts, const std::vector<Case>& cases) {
  Levels levels(batch, 6, 6);
  for (const Case& c : cases) {
    CAPTURE(c.tree.size());
    CAPTURE(c.temperature);
    CAPTURE(c.top_p);
    const auto rounds = levels.rounds(c.tree, kShape);
    const DistributionCheck check = levels.check(*rounds, batch, texts, c.temperature, c.top_p);
    CHECK(check.texts == texts);
    CHECK(check.tests.size() == 6);  // tokens 2 to 4, and three pairs of neighbours
    CAPTURE(check.worst_p());
    CHECK(check.worst_p() > 1e-4);
    // Levels agree and differ often enough for either to show.
    for (const speculate::RoundStats* s : {&rounds->stats(), rounds->stats_within()}) {
      CHECK(s->accepted > texts / 5);
      CHECK(s->drafted - s->accepted > texts / 5);
    }
  }
}

}  // namespace

TEST_SUITE("eval/nested lossless") {
  const speculate::TokenTree kChain = speculate::chain_tree(2), kTree = tree_of({2, 1, 0, 0});

  TEST_CASE("sampled texts of rounds within rounds: batches") {
    check_lossless(8, 320,
                   {{kChain, 0.6F, 0.9}, {kChain, 1, 1}, {kTree, 0.6F, 1}, {kTree, 1, 0.9}});
  }

  TEST_CASE("sampled texts of rounds within rounds: one at a time") {
    check_lossless(1, 100, {{kChain, 1, 0.9}, {kTree, 0.6F, 1}});
  }

  TEST_CASE("sampled texts where rounds within look the text up") {
    constexpr int kTexts = 320;
    Levels levels(8, 6, 6);
    for (const float temperature : {0.5F, 1.0F}) {
      CAPTURE(temperature);
      const auto rounds = speculate::nested_lookup_rounds(
          *levels.target, {*levels.target, {.keys = 1}}, 2, 3, kShape);
      const DistributionCheck check = levels.check(*rounds, 8, kTexts, temperature, 0.95);
      CHECK(check.texts == kTexts);
      CHECK(check.tests.size() == 6);
      CAPTURE(check.worst_p());
      CHECK(check.worst_p() > 1e-4);
      CHECK(rounds->stats().accepted > kTexts / 5);
      CHECK(rounds->stats().drafted - rounds->stats().accepted > kTexts / 5);
      CHECK(rounds->stats_within()->drafted > kTexts / 5);
      CHECK(rounds->stats_within()->accepted > 0);
    }
  }

  TEST_CASE("a rule within that draws anew from the whole distribution is found out") {
    Levels levels(8, 32, 16);
    const speculate::Reader middle{*levels.target, {.keys = 1}};
    const auto with = [&](const ChainRule& rule) {
      auto within = std::make_unique<ChangedDrafter>(
          std::make_unique<speculate::ModelDrafter>(*levels.draft, middle, kChain),
          verifies_by(*levels.target, rule));
      const auto rounds = speculate::drafted_rounds(
          *levels.target,
          std::make_unique<speculate::NestedDrafter>(
              middle, std::move(within), kShape,
              speculate::WithinOptions{.verify = speculate::VerifyChoice::sequoia}));
      return levels.check(*rounds, 8, 600, 0.4F, 1).worst_p();
    };
    const double right = with({}), wrong = with({.subtracts = false});
    CAPTURE(right);
    CAPTURE(wrong);
    CHECK(right > 1e-4);
    CHECK(wrong < 1e-6);
  }
}
