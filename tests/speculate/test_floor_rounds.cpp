// Rounds that verify by a floor: a target that drafts for itself, under all keys and under few.
#include <doctest/doctest.h>

#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

constexpr int kGamma = 5;
const std::vector<TokenTree>& trees() {
  static const std::vector<TokenTree> all = {chain_tree(1 + kGamma), tree_of(kBushy)};
  return all;
}

std::unique_ptr<Rounds> rounds_by(const SelfPair& pair, const TokenTree& tree, VerifyChoice verify,
                                  double floor) {
  return model_rounds(*pair.engine, {*pair.engine, {.keys = 1}}, tree,
                      {.verify = verify, .floor = {.probability = floor}});
}

}  // namespace

TEST_SUITE("speculate/floor-rounds") {
  TEST_CASE("f32: a floor above 1 passes nothing: greedy text, a token a round") {
    const SelfPair pair(6, {});
    const Generated plain = generate(*pair.engine, pair.requests(), rules(40));
    for (const TokenTree& tree : trees()) {
      const auto rounds = rounds_by(pair, tree, VerifyChoice::floor, 1.5);
      CHECK(generate(*pair.engine, pair.requests(), rules(40), rounds.get()).ids == plain.ids);
      CHECK(rounds->stats().accepted == 0);
      CHECK(rounds->stats().lossy);
      CHECK(rounds->stats().rule == "floor");
    }
  }

  TEST_CASE("f32: a draft that says what the target says: floor_or_argmax takes all of it") {
    const SelfPair pair(4096, {});
    const Generated plain = generate(*pair.engine, pair.requests(), rules(61));
    const auto rounds = rounds_by(pair, chain_tree(1 + kGamma), VerifyChoice::floor_or_argmax, 0.1);
    CHECK(generate(*pair.engine, pair.requests(), rules(61), rounds.get()).ids == plain.ids);
    const RoundStats& s = rounds->stats();
    CHECK(s.rounds > 0);
    CHECK(s.accepted_hist[kGamma] == s.rounds);
  }

  TEST_CASE("f32: a floor of 0 takes whole chains, and the token after them is the target's") {
    const SelfPair pair(6, {});
    for (const float temperature : {0.0f, 0.8f}) {
      const auto rounds = rounds_by(pair, chain_tree(1 + kGamma), VerifyChoice::floor, 0);
      const Generated g =
          generate(*pair.engine, pair.requests(), rules(61, temperature, 3), rounds.get());
      const RoundStats& s = rounds->stats();
      CHECK(s.accepted_hist[kGamma] == s.rounds);
      if (temperature > 0) continue;
      // The prompt's token, and then the last of each round.
      for (size_t i = 0; i < g.ids.size(); ++i)
        for (const size_t at : {size_t{0}, size_t{1 + kGamma}, size_t{2 * (1 + kGamma)}}) {
          Ids text = pair.requests()[i].tokens;
          text.insert(text.end(), g.ids[i].begin(),
                      g.ids[i].begin() + static_cast<std::ptrdiff_t>(at));
          const std::vector<decode::Request> again = {request(text)};
          CHECK(generate(*pair.engine, again, rules(1)).ids[0][0] == g.ids[i][at]);
        }
    }
  }

  TEST_CASE("f32: higher floors accept less, and texts go over to the target's") {
    const SelfPair pair(6, {});
    const Generated plain = generate(*pair.engine, pair.requests(), rules(60));
    double tokens = 1e9;
    size_t same_before = 0;
    for (const double floor : {0.0, 0.02, 0.2, 0.9}) {
      CAPTURE(floor);
      const auto rounds = rounds_by(pair, chain_tree(1 + kGamma), VerifyChoice::floor, floor);
      const Generated g = generate(*pair.engine, pair.requests(), rules(60), rounds.get());
      CHECK(rounds->stats().tokens_per_round() <= tokens);
      tokens = rounds->stats().tokens_per_round();
      size_t same = 0;  // tokens before the first that differs
      for (size_t i = 0; i < g.ids.size(); ++i)
        for (size_t t = 0; t < g.ids[i].size() && g.ids[i][t] == plain.ids[i][t]; ++t) ++same;
      CHECK(same >= same_before);
      same_before = same;
    }
    CHECK(tokens < 4);
  }

  TEST_CASE("exact rules are not lossy, whatever the floor") {
    const SelfPair pair(6, {});
    const Generated plain = generate(*pair.engine, pair.requests(), rules(40));
    for (const VerifyChoice verify : {VerifyChoice::match, VerifyChoice::block}) {
      const auto rounds = rounds_by(pair, chain_tree(1 + kGamma), verify, 0);
      CHECK(generate(*pair.engine, pair.requests(), rules(40), rounds.get()).ids == plain.ids);
      CHECK_FALSE(rounds->stats().lossy);
    }
  }
}
