#include <doctest/doctest.h>

#include "generate_runs.h"
#include "rounds_testing.h"
#include "speculate/measure/rule_meter.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

TEST_SUITE("speculate/rule_meter") {
  TEST_CASE("the rule of the rounds gives what they gave, another one more of the same trees") {
    const Pair pair;
    constexpr AcceptBy kRules[] = {AcceptBy::sequoia, AcceptBy::traversal};
    for (const VerifyChoice verify : {VerifyChoice::sequoia, VerifyChoice::traversal}) {
      RuleMeter meter(kRules);
      const auto rounds = model_rounds(
          *pair.target, *pair.draft, tree_of(kBushy),
          {.verify = verify, .on_verified = [&](const Round& round, const Tensor& logits) {
             meter.add(round, logits);
           }});
      (void)generate(*pair.target, pair.requests(6), rules(120, 1.0f, 3), rounds.get());
      const RuleTokens& own = meter.rules()[verify == VerifyChoice::sequoia ? 0 : 1];
      CHECK(own.rounds == rounds->stats().rounds);
      CHECK(own.accepted == rounds->stats().accepted);
      CHECK(own.tokens_per_round() == doctest::Approx(rounds->stats().tokens_per_round()));
      const std::vector<double> rates = rounds->stats().rate_by_position();
      for (size_t level = 0; level < rates.size(); ++level) {
        int64_t n = 0;
        for (const int64_t of_child : own.children[level]) n += of_child;
        CHECK(static_cast<double>(n) / static_cast<double>(own.rounds) ==
              doctest::Approx(rates[level]));
      }
      const Difference gain = meter.gain(1);
      CHECK(gain.relative ==
            doctest::Approx(
                meter.rules()[1].tokens_per_round() / meter.rules()[0].tokens_per_round() - 1));
      CHECK(gain.relative > 0);
      CHECK(gain.half_width > 0);
      CHECK(meter.gain(0).relative == 0);
      CHECK(meter.gain(0).half_width == 0);
    }
  }
}
