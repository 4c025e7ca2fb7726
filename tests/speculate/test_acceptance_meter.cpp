#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "generate_runs.h"
#include "speculate/measure/depth_meter.h"
#include "speculate/measure/tree_meter.h"
#include "speculate/round/rounds.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

ops::VerifyRule rule_of(float temperature, AcceptBy by) {
  ops::VerifyRule rule;
  rule.target.temperature = rule.draft.temperature = temperature;
  rule.accept_by = by;
  return rule;
}

}  // namespace

TEST_SUITE("speculate/acceptance_meter") {
  TEST_CASE("a draft that is the target: the first child is always accepted") {
    const auto target = make_engine(tiny_model("tiny-2m")),
               draft = make_engine(tiny_model("tiny-2m"));
    const Ids text = random_ids(*target, 60, 1);
    TreeMeter meter(*target, *draft, rule_of(0.8f, AcceptBy::sequoia), star_tree(4), 4);
    meter.add_positions(0, 7, text, 20);
    CHECK(meter.rows()[0].samples() == 40);
    CHECK(meter.rows()[0].mean(0) == doctest::Approx(1).epsilon(1e-4));
    CHECK(meter.rows()[0].mean(1) < 1e-4);
  }

  TEST_CASE("greedy: shares of positions at which the target's token is the draft's k-th") {
    const auto target = make_engine(tiny_model("tiny-16m")),
               draft = make_engine(tiny_model("tiny-2m"));
    const Ids text =
        target->tokenizer()->encode("The keeper of the lighthouse lit the lamp at dusk.");
    constexpr int kFirst = 3, kWidth = 5;
    TreeMeter meter(*target, *draft, rule_of(0, AcceptBy::match), star_tree(kWidth), kWidth);
    meter.add_positions(0, 0, text, kFirst);
    std::vector<int> hits(kWidth);
    const int t = target->cache().create(), d = draft->cache().create();
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      const Row p = extend(*target, t, std::span(text).subspan(i, 1));
      const Row q = extend(*draft, d, std::span(text).subspan(i, 1));
      if (i + 1 < size_t{kFirst}) continue;
      std::vector<int32_t> order(q.size());
      for (size_t x = 0; x < order.size(); ++x) order[x] = static_cast<int32_t>(x);
      std::partial_sort(order.begin(), order.begin() + kWidth, order.end(),
                        [&](int32_t a, int32_t b) {
                          return q[static_cast<size_t>(a)] > q[static_cast<size_t>(b)];
                        });
      for (int k = 0; k < kWidth; ++k)
        hits[static_cast<size_t>(k)] += order[static_cast<size_t>(k)] == argmax(p);
    }
    const auto n = static_cast<double>(text.size() - kFirst);
    CHECK(meter.rows()[0].samples() == static_cast<int64_t>(text.size()) - kFirst);
    for (int k = 0; k < kWidth; ++k) {
      const double share = hits[static_cast<size_t>(k)] / n;
      CHECK(meter.rows()[0].mean(k) == doctest::Approx(share));
      CHECK(meter.rows()[0].standard_error(k) ==
            doctest::Approx(std::sqrt(share * (1 - share) / (n - 1))));
    }
  }

  TEST_CASE(
      "drafts of the target's cache: each position is a root, as chains of one token have it") {
    const auto target = make_engine(tiny_model("tiny-16m"), {.caches = {{}, streaming(2, 6)}});
    const Reader draft{*target, {.keys = 1}};
    const Ids text = random_ids(*target, 80, 1);
    constexpr int kFirst = 20;
    TreeMeter meter(*target, draft, rule_of(0, AcceptBy::match), star_tree(1), 1);
    meter.add_positions(0, 0, text, kFirst);
    const int slot = target->cache().create(target->cache().all_readers());
    const decode::SeqTokens prompt[] = {{slot, std::span(text).first(kFirst - 1), true}};
    target->prefill(prompt, {});
    const ForcedText texts[] = {{text, kFirst}};
    const int slots[] = {slot};
    const auto overlaps = ForcedMeter(*target, {draft}, {0}, 1).read(slots, texts)[0][0][0];
    const double sum = std::accumulate(overlaps.begin(), overlaps.end(), 0.0);
    CHECK(meter.rows()[0].samples() == static_cast<int64_t>(overlaps.size()));
    CHECK(meter.rows()[0].mean(0) == doctest::Approx(sum / static_cast<double>(overlaps.size())));
    CHECK(meter.rows()[0].mean(0) < 0.9);
  }

  TEST_CASE("the tokens that rounds give are those that the vector predicts") {
    const auto target = make_engine(tiny_model("tiny-16m")),
               draft = make_engine(tiny_model("tiny-2m"));
    const std::vector<decode::Request> requests = {request(
        target->tokenizer()->encode("On the third day the lamp was lit before the fog came in."))};
    decode::GenerateSpec spec;
    spec.max_tokens = 400;
    spec.sampler.rule.temperature = 0.8f;
    const TokenTree tree = tree_of_children(std::vector<int>{4, 2, 0, 0, 0, 0, 0}, "test");
    const auto rounds = model_rounds(*target, *draft, tree, {.verify = VerifyChoice::sequoia});
    const Generated g = test::generate(*target, requests, spec, rounds.get());
    Ids text = requests[0].tokens;
    const int first = static_cast<int>(text.size());
    text.insert(text.end(), g.ids[0].begin(), g.ids[0].end());
    TreeMeter meter(*target, *draft, rule_of(0.8f, AcceptBy::sequoia), star_tree(4), 4);
    meter.add_positions(0, 1, text, first);
    AcceptanceVector vector;
    vector.rows.emplace_back();
    for (int k = 0; k < 4; ++k) vector.rows[0].push_back(meter.rows()[0].mean(k));
    const double predicted = expected_tokens(tree, vector),
                 measured = rounds->stats().tokens_per_round();
    MESSAGE("predicted " << predicted << ", measured " << measured);
    // Some 200 rounds of a standard deviation below 1.
    CHECK(std::abs(predicted - measured) < 0.25);
  }

  TEST_CASE("of a tree: every node that rounds came by, found again in their texts") {
    const auto target = make_engine(tiny_model("tiny-16m")),
               draft = make_engine(tiny_model("tiny-2m"));
    const TokenTree tree =
        tree_of_children(std::vector<int>{3, 2, 1, 0, 2, 0, 1, 0, 1, 0, 0}, "test");
    const Ids prompt = target->tokenizer()->encode("The keeper of the lighthouse");
    decode::GenerateSpec spec;
    spec.max_tokens = 300;
    for (const float temperature : {0.0f, 0.8f}) {
      CAPTURE(temperature);
      spec.sampler.rule.temperature = temperature;
      spec.sampler.seed = 5;
      std::vector<int> accepted;
      const auto rounds =
          model_rounds(*target, *draft, tree,
                       {.on_round = [&](const RoundEvent& e) { accepted.push_back(e.accepted); },
                        .verify = VerifyChoice::sequoia});
      Ids text = prompt;
      const Ids written = test::generate(*target, {request(prompt)}, spec, rounds.get()).ids[0];
      text.insert(text.end(), written.begin(), written.end());
      const auto rule = rule_of(temperature, temperature > 0 ? AcceptBy::sequoia : AcceptBy::match);
      TreeMeter meter(*target, *draft, rule, tree, 4);
      const int pages = target->cache().store().free_pages();
      meter.add(0, spec.sampler.seed, text, static_cast<int>(prompt.size()), accepted);
      CHECK(target->cache().store().free_pages() == pages);
      CHECK(meter.lost() == 0);
      REQUIRE(meter.rows().size() == static_cast<size_t>(tree.levels() - 1));
      // All roots but one that the text may have ended ahead of.
      const auto n_rounds = static_cast<int64_t>(accepted.size());
      CHECK(meter.rows()[0].samples() >= n_rounds - 1);
      CHECK(meter.rows()[0].samples() <= n_rounds);
      AcceptanceVector vector;
      for (const ChanceSums& row : meter.rows()) {
        vector.rows.emplace_back();
        for (int k = 0; k < 4; ++k) vector.rows.back().push_back(row.mean(k));
      }
      // Greedy chances are hits, and level by level no more than those can be found.
      const double predicted = expected_tokens(tree, vector);
      CHECK(predicted == doctest::Approx(rounds->stats().tokens_per_round()).epsilon(0.1));
    }
    TreeMeter none(*target, *draft, rule_of(0, AcceptBy::match), tree, 4);
    none.add(0, 0, prompt, static_cast<int>(prompt.size()) - 1, {});  // ended with its first token
    CHECK(none.rows()[0].samples() == 0);
  }

  TEST_CASE(
      "by depth: rows of a text that is written node by node, still the target's own when greedy") {
    const auto target = make_engine(tiny_model("tiny-16m")),
               draft = make_engine(tiny_model("tiny-2m"));
    std::vector<decode::Request> requests;
    for (const char* prompt : {"Once upon a time", "The keeper of the lighthouse"})
      requests.push_back(request(target->tokenizer()->encode(prompt)));
    decode::GenerateSpec spec;
    spec.max_tokens = 60;
    DepthMeter greedy(*target, *draft, rule_of(0, AcceptBy::match), 3, 4);
    const int pages = draft->cache().store().free_pages();
    CHECK(test::generate(*target, requests, spec, &greedy).ids ==
          test::generate(*target, requests, spec).ids);
    CHECK(draft->cache().store().free_pages() == pages);
    int64_t nodes = 0;
    for (const ChanceSums& row : greedy.rows()) nodes += row.samples();
    CHECK(nodes == 2 * 59);  // the first token of each comes from the prompt
    // A node lies one deeper where a child was accepted: a row holds as many nodes as the row
    // before had hits, but for those at the ends of the texts. Behind the last row a round begins
    // anew.
    for (size_t d = 0; d + 1 < greedy.rows().size(); ++d) {
      const ChanceSums& row = greedy.rows()[d];
      double hits = 0;
      for (int k = 0; k < row.width(); ++k)
        hits += row.mean(k) * static_cast<double>(row.samples());
      const auto deeper = static_cast<double>(greedy.rows()[d + 1].samples());
      CHECK(hits >= deeper - 0.01);
      CHECK(hits <= deeper + 2.01);
    }

    spec.sampler.rule.temperature = 0.8f;
    const auto same = make_engine(tiny_model("tiny-16m"));
    DepthMeter self(*target, *same, rule_of(0.8f, AcceptBy::sequoia), 2, 3);
    (void)test::generate(*target, requests, spec, &self);
    // Always accepted: rounds of three nodes, all rows alike.
    for (const ChanceSums& row : self.rows()) {
      CHECK(row.samples() >= 2 * 59 / 3 - 2);
      CHECK(row.samples() <= 2 * 59 / 3 + 3);
    }
    CHECK(self.rows()[2].mean(0) == doctest::Approx(1).epsilon(1e-3));
  }
}
