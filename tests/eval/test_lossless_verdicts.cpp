#include <doctest/doctest.h>

#include <cmath>

#include "base/rng.h"
#include "eval/lossless_verdicts.h"
#include "tools/spec_check.h"

using namespace tandem;
using namespace tandem::eval;

namespace {

speculate::RoundStats counts(int64_t rounds, int64_t drafted, int64_t accepted, int64_t refused) {
  speculate::RoundStats s("draft", "block", speculate::TreeRoom::of(speculate::chain_tree(3)));
  s.rounds = rounds;
  s.drafted = drafted;
  s.accepted = accepted;
  s.refused = refused;
  return s;
}

}  // namespace

TEST_SUITE("eval/lossless verdicts") {
  TEST_CASE("p of a sum: the normal distribution, or a bound where the variance is small") {
    CHECK(TokenTest{.found = 5, .expected = 5, .variance = 0}.p() == 1);
    CHECK(TokenTest{.found = 519.6, .expected = 500, .variance = 100}.p() ==
          doctest::Approx(0.05).epsilon(0.001));
    CHECK(TokenTest{.found = 480.4, .expected = 500, .variance = 100}.p() ==
          doctest::Approx(0.05).epsilon(0.001));
    // Events that hardly ever come, and came 20 times.
    CHECK(TokenTest{.found = 20, .expected = 0, .variance = 1e-9}.p() < 1e-11);
    // The bound holds for coins, and is not far from their tail.
    constexpr int kRuns = 20000, kCoins = 80;
    const TokenTest test{.found = 52, .expected = 40, .variance = 20};
    PhiloxStream rng(3);
    int n = 0;
    for (int run = 0; run < kRuns; ++run) {
      int heads = 0;
      for (int i = 0; i < kCoins; ++i) heads += static_cast<int>(rng.below(2));
      n += std::abs(heads - 40) >= 12 ? 1 : 0;
    }
    CHECK(n > 0);
    CHECK(test.p() > static_cast<double>(n) / kRuns);
    CHECK(test.p() < 20.0 * n / kRuns);
  }

  TEST_CASE("a level that refuses or accepts too little, texts of too few steps") {
    const speculate::RoundStats none = counts(0, 0, 0, 0);
    const auto why = [&](const speculate::RoundStats& outer, const speculate::RoundStats& inner) {
      const std::vector<Level> levels = {{"", nullptr, &outer}, {"inner ", nullptr, &inner}};
      const auto found = inconclusive(levels, std::vector{none, none}, 100);
      return found ? found->why : "";
    };
    const speculate::RoundStats enough = counts(300, 900, 200, 200);
    CHECK(why(enough, enough) == "");
    CHECK(why(counts(300, 900, 701, 199), enough) ==
          "in sampled texts speculation refused 199 of 900 draft tokens, expected at least 200");
    CHECK(why(enough, counts(300, 900, 900, 0)) ==
          "in sampled texts inner speculation refused 0 of 900 draft tokens, expected at least "
          "200");
    CHECK(why(counts(300, 900, 199, 300), enough) ==
          "in sampled texts speculation accepted 199 of 900 draft tokens, expected at least 200");
    CHECK(why(counts(299, 900, 300, 300), enough) ==
          "in sampled texts speculation took 2.99 steps a text, expected at least 3");
    CHECK(why(enough, counts(0, 900, 300, 300)) == "");
    // Counts before sampled texts are subtracted.
    const speculate::RoundStats all = counts(600, 1800, 400, 399);
    const std::vector<Level> levels = {{"", nullptr, &all}};
    CHECK(inconclusive(levels, std::vector{enough}, 100).has_value());
  }

  TEST_CASE("budgets for built-in prompts") {
    for (const std::string_view name : enum_names(recipe::CacheKind{})) {
      CAPTURE(name);
      recipe::Cache cache;
      const auto names = enum_names(cache.kind);
      cache.kind = static_cast<recipe::CacheKind>(std::ranges::find(names, name) - names.begin());
      tools::Lowered lowered;
      const int shortest = tools::lower_budgets(cache, "draft.cache", lowered);
      CHECK(shortest >= kShortestPrompt);
      CHECK(lowered.empty() == (cache.kind == recipe::CacheKind::full));
      for (const auto& [key, value] : lowered) CHECK(key.starts_with("draft.cache."));
      tools::Lowered again;
      CHECK(tools::lower_budgets(cache, "draft.cache", again) == shortest);
      CHECK(again.empty());
    }
    const tools::LosslessSection section;
    CHECK(section.length_of_texts(3) == 16);
    CHECK(section.length_of_texts(9) == 18);
    CHECK(section.length_of_texts(65) == 32);
  }
}
