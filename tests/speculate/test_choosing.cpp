#include <doctest/doctest.h>

#include "nested_testing.h"
#include "speculate/draft/choosing_drafter.h"
#include "speculate/draft/model_drafter.h"
#include "speculate/draft/nested_drafter.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

/// Times in ms that depend on no number of rows.
NestedCost cost_of(double small, double retrieval, double full) {
  const auto flat = [](double ms) { return TimeCurve{.tokens = {1}, .ms = {ms}}; };
  StepCost outer{.target = flat(full), .draft = flat(retrieval), .skip_deepest = true};
  StepCost inner{.target = flat(retrieval), .draft = flat(small), .skip_deepest = true};
  return {outer, inner};
}

/// Chains of three alone, of one within, with acceptance assumed to begin with.
struct Choice {
  std::unique_ptr<Rounds> rounds;
  const ChoosingDrafter* chooser = nullptr;

  Choice(const NestedPair& pair, const NestedCost& cost, double alpha1, double alpha2) {
    const Reader target = *pair.target, middle{*pair.target, {.keys = 1}};
    constexpr NestedShape kShape{.rounds = 3, .enough = 4};
    const TokenTree alone = chain_tree(4), inside = chain_tree(2);
    const auto chain = [](const TokenTree& tree, double alpha) {
      Proposals p = chain_proposals(1, alpha);
      p.trees = {tree};
      return p;
    };
    ChoosingDrafter::Outlook outlook{.cost = cost,
                                     .options = {.small = chain(alone, alpha1),
                                                 .retrieval = chain(alone, alpha2),
                                                 .inside = chain(inside, alpha1),
                                                 .enough = {kShape.enough},
                                                 .rounds = {kShape.rounds}},
                                     .alpha1 = alpha1,
                                     .alpha2 = alpha2};
    auto drafter = std::make_unique<ChoosingDrafter>(
        ChoosingDrafter::Drafters{
            .small = std::make_unique<ModelDrafter>(*pair.draft, target, alone),
            .retrieval = std::make_unique<ModelDrafter>(middle, target, alone),
            .nested = std::make_unique<NestedDrafter>(
                middle, std::make_unique<ModelDrafter>(*pair.draft, target, inside), kShape,
                WithinOptions{})},
        std::move(outlook));
    chooser = drafter.get();
    rounds = drafted_rounds(target, std::move(drafter));
  }
  int64_t taken(RoundKind kind) const {
    return chooser->rounds_by_kind()[static_cast<size_t>(kind)];
  }
};

}  // namespace

TEST_SUITE("speculate/choosing") {
  // Both small models hold a batch twice: within rounds and alone.
  const Setup kRoom{.max_seqs = 8};

  TEST_CASE("f32: the kind that the times speak for is taken, and greedy text stays") {
    const NestedPair pair(retrieval(33, 2), {}, {}, "tiny-2m", kRoom);
    decode::GenerateSpec how = rules(60);
    how.max_active = 3;
    const Generated plain = generate(*pair.target, pair.requests(), how);
    struct Case {
      NestedCost cost;
      RoundKind best;
    };
    for (const Case& c : {Case{cost_of(.01, 10, 100), RoundKind::nested},
                          Case{cost_of(.01, 99, 100), RoundKind::small},
                          Case{cost_of(50, 1, 100), RoundKind::retrieval},
                          Case{cost_of(200, 200, 100), RoundKind::plain}}) {
      CAPTURE(static_cast<int>(c.best));
      const Choice choice(pair, c.cost, .5, .9);
      CHECK(choice.chooser->choices().best().kind == c.best);
      CHECK(generate(*pair.target, pair.requests(), how, choice.rounds.get()).ids == plain.ids);
      int64_t all = 0;
      for (const int64_t n : choice.chooser->rounds_by_kind()) all += n;
      CHECK(choice.taken(c.best) > 0);
      CHECK(choice.taken(c.best) >= all / 2);
    }
  }

  TEST_CASE("f32: acceptance that falls short of what was assumed leads to another kind") {
    // Few keys and a short window are seldom right.
    const NestedPair pair(retrieval(5, 2), {}, streaming(1, 2), "tiny-2m", kRoom);
    const Choice choice(pair, cost_of(40, 45, 100), .95, .1);
    CHECK(choice.chooser->choices().best().kind == RoundKind::small);
    const decode::GenerateSpec how = rules(100);
    CHECK(generate(*pair.target, pair.requests(), how, choice.rounds.get()).ids ==
          generate(*pair.target, pair.requests(), how).ids);
    CHECK(choice.chooser->alpha1() < .8);
    CHECK(choice.taken(RoundKind::small) > 0);
    CHECK(choice.taken(RoundKind::plain) > choice.taken(RoundKind::small));
    CHECK(choice.chooser->choices().best().kind == RoundKind::plain);
  }
}
