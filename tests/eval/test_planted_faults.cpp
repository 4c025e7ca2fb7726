// The power of spec-check: faults planted into rounds are found with its default numbers of texts.
#include <doctest/doctest.h>

#include "chain_rule.h"
#include "eval/lossless_verdicts.h"
#include "nested_testing.h"
#include "speculate/draft/model_drafter.h"
#include "speculate/draft/nested_drafter.h"
#include "tools/spec_check.h"

using namespace tandem;
using namespace tandem::test;
using test::Ids;

namespace {

using Changes = ChangedDrafter::Changes;

/// One way to speculate, with the numbers of texts and limits of spec-check.
class Checked {
 public:
  Checked()
      : pair_(retrieval(8, 2), {}, streaming(1, 5), "tiny-2m",
              {.max_seqs = kBatch + 2, .max_tokens = 160, .logit_rows = 12 * (kBatch + 2)}) {}

  decode::Engine& target() { return *pair_.target; }
  speculate::Reader self() { return {target(), {.keys = 1}}; }

  /// By the small model.
  std::string fault_of(const speculate::TokenTree& tree, Changes changes, bool is_right = false) {
    eval::LevelTests tests(true);
    auto drafter = std::make_unique<ChangedDrafter>(
        std::make_unique<speculate::ModelDrafter>(*pair_.draft, target(), tree),
        std::move(changes));
    const auto rounds = speculate::drafted_rounds(
        target(), std::move(drafter),
        {.verify = speculate::VerifyChoice::sequoia, .on_verified = tests.hook()});
    return fault_of(*rounds, tree.levels(), {{"", &tests, &rounds->stats()}}, is_right);
  }
  /// By inner steps, in which the small model drafts chains.
  std::string fault_within(Changes changes, bool is_right = false) {
    eval::LevelTests tests(true), inner(true);
    const speculate::NestedShape shape{.rounds = 3, .enough = 4};
    const speculate::TokenTree chain = speculate::chain_tree(3);
    auto within = std::make_unique<ChangedDrafter>(
        std::make_unique<speculate::ModelDrafter>(*pair_.draft, target(), chain),
        std::move(changes));
    auto nested = std::make_unique<speculate::NestedDrafter>(
        self(), std::move(within), shape,
        speculate::WithinOptions{.verify = speculate::VerifyChoice::sequoia,
                                 .on_verified = inner.hook()});
    const auto rounds = speculate::drafted_rounds(
        target(), std::move(nested),
        {.verify = speculate::VerifyChoice::sequoia, .on_verified = tests.hook()});
    return fault_of(*rounds, 1 + shape.most(chain.levels()),
                    {{"", &tests, &rounds->stats()}, {"inner ", &inner, rounds->stats_within()}},
                    is_right);
  }

 private:
  static constexpr int kBatch = 40;

  decode::GenerateSpec how(int tokens, double temperature, int64_t seed) const {
    decode::GenerateSpec spec = rules(tokens, static_cast<float>(temperature), seed);
    spec.max_active = kBatch;
    return spec;
  }

  /// Returns the first check that fails, or why the run is inconclusive, or "nothing". A run ends
  /// early if p is a thousand times below its limit. A right rule passes after ten prompts.
  std::string fault_of(speculate::Rounds& rounds, int longest,
                       const std::vector<eval::Level>& levels, bool is_right) {
    const tools::LosslessSection section;
    const std::vector<Ids> prompts = eval::varied_prompts(target().files(), section.n_prompts, 0);
    const eval::GreedyCheck greedy = eval::check_greedy(target(), rounds, prompts, how(64, 0, 0));
    if (greedy.texts_equal < greedy.texts) return "greedy texts";
    std::vector<speculate::RoundStats> before;
    for (const eval::Level& level : levels) before.push_back(*level.stats);
    const std::vector<double> temperatures = section.temperatures_of({});
    const int texts = section.texts / section.n_prompts;
    std::vector<eval::DistributionCheck> sums(temperatures.size());
    for (int i = 0; i < section.n_prompts; ++i) {
      const auto checks = eval::check_distributions(
          target(), rounds,
          {.prompts = std::span(prompts).subspan(static_cast<size_t>(i), 1),
           .texts = texts,
           .temperatures = temperatures,
           .how = [&](double t) { return how(section.length_of_texts(longest), t, 4 * i); }});
      for (size_t t = 0; t < sums.size(); ++t) sums[t].add(checks[t]);
      const bool is_last = i + 1 == section.n_prompts;
      double worst = 1;
      for (const eval::Verdict& v :
           eval::sampled_verdicts(sums, temperatures, levels, section.significance)) {
        const double p = v.details["p"], allowed = v.details["p_allowed"];
        worst = std::min(worst, p);
        if (is_last ? !v.passed : p < allowed / 1000)
          return fmt::format("{}, p = {:.2g} after {} texts", v.check, p, v.texts);
      }
      if (is_right && i == 9 && worst > 1e-3) break;
    }
    const auto why = eval::inconclusive(levels, before, 0);
    return why ? why->why : "nothing";
  }

  NestedPair pair_;
};

/// Checks that the fault is found by the test of this name.
void check_found(const std::string& fault, const std::string& by) {
  MESSAGE(fault);
  CHECK(fault.find(by) != std::string::npos);
}

}  // namespace

TEST_SUITE("eval/planted faults") {
  const speculate::TokenTree kChain = speculate::chain_tree(4), kStar = tree_of({3, 0, 0, 0});

  TEST_CASE("chains: nothing is found in a right rule") {
    Checked checked;
    CHECK(checked.fault_of(kChain, {}, true) == "nothing");
    CHECK(checked.fault_of(kChain, verifies_by(checked.target(), {}), true) == "nothing");
  }

  TEST_CASE("chains: faults of the rule") {
    Checked checked;
    const auto fault_of = [&](const ChainRule& rule) {
      return checked.fault_of(kChain, verifies_by(checked.target(), rule));
    };
    check_found(fault_of({.acceptance = 1.03}), "the draft prefers");
    check_found(fault_of({.draft_temperature = 1.1}), "likeliest tokens, p");
    check_found(fault_of({.normalizes = false}), "likeliest tokens, p");
    check_found(fault_of({.subtracts = false}), "the draft prefers");
    check_found(fault_of({.tosses = false}), "order of token ids");
    check_found(fault_of({.keeps_bonus = false}), "the draft prefers");
    check_found(fault_of({.reads_leaf = false}), "greedy texts");
  }

  TEST_CASE("inner steps: nothing is found in a right rule, faults are") {
    Checked checked;
    CHECK(checked.fault_within(verifies_by(checked.target(), {}), true) == "nothing");
    const auto fault_of = [&](const ChainRule& rule) {
      return checked.fault_within(verifies_by(checked.target(), rule));
    };
    check_found(fault_of({.acceptance = 1.03}), "inner tokens that the draft prefers");
    check_found(fault_of({.draft_temperature = 1.1}), "inner likeliest tokens, p");
    check_found(fault_of({.subtracts = false}), "inner tokens that the draft prefers");
  }

  TEST_CASE("trees: children in another order") {
    Checked checked;
    CHECK(checked.fault_of(kStar, {}, true) == "nothing");
    check_found(checked.fault_of(kStar, {.proposals =
                                             [](speculate::Round& round) {
                                               for (size_t b = 0; b < round.n_seqs(); ++b)
                                                 std::swap(round.host_tokens(b)[1],
                                                           round.host_tokens(b)[3]);
                                             }}),
                "likeliest tokens, p");
  }

  TEST_CASE("the cache of the target: a stale key, a rollback that keeps a refused token") {
    Checked checked;
    kv::Cache& cache = checked.target().cache();
    const auto stale = [&](const speculate::RoundResults&, std::span<const int32_t> slots) {
      for (const int32_t slot : slots) {
        const int at = cache.length(slot) - 1;
        const Tensor page = cache.k(0).slice(cache.store().page(slot, at / kPageTokens), 1);
        const auto dim = static_cast<size_t>(cache.geometry().head_dim);
        float* row = static_cast<float*>(page.raw()) + static_cast<size_t>(at % kPageTokens) * dim;
        if (at % kPageTokens > 0) std::copy_n(row - dim, dim, row);
      }
    };
    check_found(checked.fault_of(kChain, {.kept = stale}), "greedy");
    const auto keeps_one = [&](const speculate::RoundResults& results,
                               std::span<const int32_t> slots) {
      for (size_t b = 0; b < slots.size(); ++b)
        if (results.path(b).empty()) cache.keep(slots.subspan(b, 1), std::vector<int>{1});
    };
    check_found(checked.fault_of(kChain, {.kept = keeps_one}), "greedy");
  }
}
