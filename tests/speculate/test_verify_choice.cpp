#include <doctest/doctest.h>

#include "base/error.h"
#include "error_text.h"
#include "rounds_testing.h"
#include "speculate/round/verify_choice.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

TEST_SUITE("speculate/verify_choice") {
  TEST_CASE("automatic: by what is proposed, and where it pays") {
    const auto choose = [](const TokenTree& tree, bool draws = true, bool is_light = false) {
      return rule_for(VerifyChoice::automatic, draws, tree, is_light);
    };
    CHECK(choose(tree_of(kBushy)) == AcceptBy::traversal);
    CHECK(choose(chain_tree(9)) == AcceptBy::block);
    CHECK(choose(tree_of({3, 0, 0, 0})) == AcceptBy::sequoia);
    CHECK(choose(chain_tree(9), false) == AcceptBy::match);
    CHECK(choose(tree_of(kBushy), true, true) == AcceptBy::sequoia);
    CHECK(choose(chain_tree(3), true, true) == AcceptBy::sequoia);
    CHECK(choose(chain_tree(5), true, true) == AcceptBy::block);
  }

  TEST_CASE("a wish is a command, or refused") {
    const TokenTree tree = tree_of(kBushy), chain = chain_tree(4);
    CHECK(rule_for(VerifyChoice::sequoia, true, tree, false) == AcceptBy::sequoia);
    CHECK(rule_for(VerifyChoice::match, true, tree, false) == AcceptBy::match);
    CHECK(rule_for(VerifyChoice::traversal, true, chain, true) == AcceptBy::traversal);
    CHECK(rule_for(VerifyChoice::block, true, chain, true) == AcceptBy::block);
    CHECK(rule_for(VerifyChoice::match, false, chain, false) == AcceptBy::match);
    CHECK_THROWS_WITH_AS((void)rule_for(VerifyChoice::block, true, tree, false),
                         "spec.verify: is block, which only supports linear drafts; a node of this "
                         "tree has 3 children",
                         Error);
    for (const VerifyChoice choice :
         {VerifyChoice::sequoia, VerifyChoice::block, VerifyChoice::traversal})
      CHECK_THROWS_AS((void)rule_for(choice, false, chain, false), Error);
    for (const bool draws : {false, true}) {
      CHECK(rule_for(VerifyChoice::floor, draws, tree, false) == AcceptBy::floor);
      CHECK(rule_for(VerifyChoice::typical, draws, chain, false) == AcceptBy::typical);
    }
    for (const AcceptBy rule : {AcceptBy::floor, AcceptBy::floor_or_argmax, AcceptBy::typical})
      CHECK(is_lossy(rule));
    for (const AcceptBy rule :
         {AcceptBy::match, AcceptBy::sequoia, AcceptBy::block, AcceptBy::traversal})
      CHECK_FALSE(is_lossy(rule));
  }
}
