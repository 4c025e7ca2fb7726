#include "eval/lossless_verdicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::eval {
namespace {

/// The test with the lowest p among those of n tokens, for all of them.
Verdict worst_of(const DistributionCheck& found, int n, double temperature, double least) {
  int tests = 0;
  const DistributionTest* worst = nullptr;
  for (const DistributionTest& t : found.tests) {
    if (t.n != n) continue;
    ++tests;
    if (worst == nullptr || t.test.p < worst->test.p) worst = &t;
  }
  const std::string place = n == 1
                                ? fmt::format("token {}", worst->first + 1)
                                : fmt::format("tokens {}, {}", worst->first + 1, worst->first + 2);
  return {.check = n == 1 ? "distribution of single tokens" : "distribution of neighbours",
          .temperature = temperature,
          .texts = found.texts,
          .found = fmt::format("p = {:.3g}, lowest of {} ({}: chi-square {:.1f} of {} degrees), {} "
                               "prompts",
                               worst->test.p, tests, place, worst->test.chi_square,
                               worst->test.degrees, found.prompts),
          .limit = fmt::format("p >= {:.2g}", least),
          .passed = worst->test.p >= least,
          .details = {{"prompts", found.prompts},
                      {"tests", tests},
                      {"first", worst->first + 1},
                      {"cells", worst->test.cells},
                      {"degrees", worst->test.degrees},
                      {"chi_square", worst->test.chi_square},
                      {"p", worst->test.p},
                      {"p_allowed", least}}};
}

Verdict verdict_of(const Level& level, size_t test, int64_t texts, double least) {
  const LevelTests::Sums& sums = level.tests->sums();
  const TokenTest& t = sums.tests[test];
  const double p = t.p(), deviation = std::sqrt(t.variance);
  return {.check = level.name + std::string(LevelTests::kNames[test]),
          .texts = texts,
          .found = fmt::format("{:.1f} in {} tokens, expected {:.1f} +- {:.1f}, p = {:.3g}",
                               t.found, sums.tokens, t.expected, deviation, p),
          .limit = fmt::format("p >= {:.2g}", least),
          .passed = p >= least,
          .details = {{"tokens", sums.tokens},
                      {"found", t.found},
                      {"expected", t.expected},
                      {"deviation", deviation},
                      {"p", p},
                      {"p_allowed", least}}};
}

}  // namespace

std::vector<Verdict> sampled_verdicts(std::span<const DistributionCheck> checks,
                                      std::span<const double> temperatures,
                                      std::span<const Level> levels, double significance) {
  std::vector<Verdict> verdicts;
  // Bonferroni: the chances of all tests add up to at most the significance.
  size_t n_level_tests = 0, n_tests = 0;
  int64_t texts = 0;
  for (const Level& level : levels)
    if (level.tests != nullptr) n_level_tests += LevelTests::kNames.size();
  for (const DistributionCheck& check : checks) {
    n_tests += check.tests.size();
    texts += check.texts;
  }
  const double half = significance / (n_level_tests > 0 ? 2 : 1);
  for (size_t t = 0; t < checks.size(); ++t)
    for (const int n : {1, 2})
      verdicts.push_back(
          worst_of(checks[t], n, temperatures[t], half / static_cast<double>(n_tests)));
  for (const Level& level : levels)
    for (size_t i = 0; level.tests != nullptr && i < LevelTests::kNames.size(); ++i)
      verdicts.push_back(verdict_of(level, i, texts, half / static_cast<double>(n_level_tests)));
  return verdicts;
}

std::optional<Inconclusive> inconclusive(std::span<const Level> levels,
                                         std::span<const speculate::RoundStats> before,
                                         int64_t texts) {
  for (size_t i = 0; i < levels.size(); ++i) {
    const speculate::RoundStats s = levels[i].stats->since(before[i]);
    const std::string who = "in sampled texts " + levels[i].name + "speculation";
    const auto few = [&](const char* verb, int64_t n) {
      return fmt::format("{} {} {} of {} draft tokens, expected at least {}", who, verb, n,
                         s.drafted, kLeastProposals);
    };
    if (s.refused < kLeastProposals)
      return Inconclusive{few("refused", s.refused),
                          levels[i].has_budget
                              ? "raise eval.texts, name prompts longer than the budget of "
                                "spec.draft.cache, or lower that budget"
                              : "raise eval.texts"};
    if (s.accepted < kLeastProposals)
      return Inconclusive{
          few("accepted", s.accepted),
          "raise eval.texts, or choose a draft or prompts whose tokens are accepted "
          "more often"};
    if (i == 0 && s.rounds < kLeastSteps * texts)
      return Inconclusive{
          fmt::format("{} took {:.2f} steps a text, expected at least {}", who,
                      static_cast<double>(s.rounds) / static_cast<double>(texts), kLeastSteps),
          "raise eval.text_tokens, or lower spec.gamma"};
  }
  return {};
}

}  // namespace tandem::eval
