#include <doctest/doctest.h>

#include "error_text.h"
#include "speculate/tree/timing.h"
#include "speculate/tree/tree_choice.h"
#include "temporary_folder.h"
#include "tree_testing.h"

using namespace tandem;
using namespace tandem::speculate;
using test::input_error_text;
using test::vector_of;
using Ints = std::vector<int>;

namespace {

StepCost steps_of(TimeCurve target, TimeCurve draft) {
  return {.target = std::move(target), .draft = std::move(draft)};
}

TreeTable table_of(const AcceptanceVector& v, int max_size, int max_levels) {
  return {v, {.max_size = max_size, .min_levels = 1, .max_levels = max_levels}};
}

std::string timing_error(const std::string& members) {
  return input_error_text([&] {
    parse_timing(R"({"format": "sequoia-timing/1", "buckets": [)" + members + "]}", "t.json");
  });
}

}  // namespace

TEST_SUITE("speculate/tree choice") {
  TEST_CASE("the golden cases") {
    const auto& golden = test::sequoia_golden();
    for (const io::Json& c : golden.json.at("optimizer_cases")) {
      CAPTURE(c.at("note").dump());
      const auto& v = golden.vectors.at(c.at("vector").get<std::string>());
      const auto sizes = c.at("n_list").get<Ints>();
      const int max_levels = c.at("max_levels").get<int>();
      const TreeTable table = table_of(v, sizes.back(), max_levels);
      const StepCost times = steps_of({sizes, c.at("t_list").get<std::vector<double>>()},
                                      {{1}, {c.at("draft_time_per_level").get<double>()}});
      const TreeChoice choice = choose_tree(table, v, sizes, max_levels, times);
      CHECK(choice.best.size == c.at("best_n").get<int>());
      CHECK(choice.best.levels == c.at("best_levels").get<int>());
      CHECK(choice.best.expected == doctest::Approx(c.at("F").get<double>()).epsilon(1e-10));
      CHECK(choice.best.cost.ms_per_token ==
            doctest::Approx(c.at("cost_per_token").get<double>()).epsilon(1e-10));
      CHECK(choice.speedup() ==
            doctest::Approx(c.at("speedup_vs_t1").get<double>()).epsilon(1e-10));
      const io::Json& second = c.at("runner_up");
      REQUIRE(choice.runner_up);
      CHECK(choice.runner_up->size == second.at("n").get<int>());
      CHECK(choice.runner_up->levels == second.at("levels").get<int>());
      CHECK(choice.runner_up->cost.ms_per_token ==
            doctest::Approx(second.at("cost_per_token").get<double>()).epsilon(1e-10));
    }
  }

  TEST_CASE("no tree of the table costs less, whatever the draft's widths cost") {
    const AcceptanceVector v = vector_of({{.5, .2, .1, .05}});
    const Ints sizes = {1, 3, 5, 8, 12, 20, 33};
    const TreeTable table = table_of(v, 33, 9);
    StepCost times = steps_of({{1, 8, 40}, {10, 11, 18}}, {{1, 4, 16}, {.3, .8, 3}});
    times.overhead_ms = .5;
    for (const bool skip : {false, true}) {
      times.skip_deepest = skip;
      const TreeChoice choice = choose_tree(table, v, sizes, 9, times);
      double best = 1e9;
      for (const int n : sizes)
        for (int l = 1; l <= 9; ++l) {
          if (!table.expected(n, l)) continue;
          double ms = times.target.at(n) + .5;
          const auto widths = table.tree(n, l).widths();
          const size_t calls = skip && widths.size() > 1 ? widths.size() - 1 : widths.size();
          for (size_t i = 0; i < calls; ++i) ms += times.draft.at(widths[i]);
          best = std::min(best, ms / *table.expected(n, l));
        }
      CHECK(choice.best.cost.ms_per_token == doctest::Approx(best).epsilon(1e-13));
      CHECK(choice.best.cost.draft_ms.size() ==
            static_cast<size_t>(choice.best.levels) - (skip ? 1 : 0));
      CHECK(choice.runner_up->cost.ms_per_token >= best);
      for (const Sensitivity& s : choice.sensitivity) CHECK(s.loss >= 0);
    }
  }

  TEST_CASE("chains, and drafts too slow to pay") {
    const AcceptanceVector v = vector_of({{.5}});
    const StepCost times = steps_of({{1, 8}, {10, 10}}, {{1}, {1}});
    const Ints sizes = {1, 2, 3, 4, 8};
    const TreeChoice choice = choose_tree(table_of(v, 8, 8), v, sizes, 8, times);
    // (10 + n) / (2 - 2^(1 - n)): 8, 7.43, 7.47 for n = 2, 3, 4
    CHECK(choice.chain->size == 3);
    CHECK(choice.chain->cost.ms_per_token == doctest::Approx(13 / 1.75));
    CHECK(choice.best.size == 3);
    const StepCost slow = steps_of({{1, 8}, {10, 10}}, {{1}, {9}});
    CHECK(choose_tree(table_of(v, 8, 8), v, sizes, 8, slow).speedup() < 1);
  }

  TEST_CASE("no tree within the bounds") {
    const AcceptanceVector v = vector_of({{.5, .2}});
    const StepCost times = steps_of({{1, 8}, {10, 10}}, {{1}, {1}});
    CHECK_THROWS_WITH_AS(choose_tree(table_of(v, 8, 2), v, Ints{8}, 2, times),
                         "tree.sizes: no tree of 8 nodes fits 2 levels", Error);
  }
}

TEST_SUITE("speculate/timing") {
  TEST_CASE("between points the line, beyond them its continuation") {
    const TimeCurve curve{{1, 4, 8}, {10, 13, 21}};
    CHECK(curve.at(1) == 10);
    CHECK(curve.at(2) == doctest::Approx(11));
    CHECK(curve.at(4) == 13);
    CHECK(curve.at(6) == doctest::Approx(17));
    CHECK(curve.at(8) == 21);
    CHECK(curve.at(10) == doctest::Approx(25));
    const TimeCurve flat{{4}, {3}};
    CHECK(flat.at(1) == 3);
    CHECK(flat.at(100) == 3);
    const TimeCurve falling{{1, 4}, {10, 9}};
    CHECK(falling.at(3) == doctest::Approx(9.3333333));
    CHECK(falling.at(100) == 9);
  }

  TEST_CASE("a file with two contexts") {
    const std::string two =
        R"({"context": 100, "target": {"tokens": [1, 2], "ms": [1, 2]}, "draft": {"tokens": [1], "ms": [0.5]}},
           {"context": 900, "target": {"tokens": [1, 2], "ms": [3, 4]}, "draft": {"tokens": [1], "ms": [0.5]}})";
    const test::TemporaryFolder folder;
    const TimingTable table = read_timing(folder.write(
        "t.json",
        R"({"format": "sequoia-timing/1", "device": "x", "overhead_ms": 0.25, "buckets": [)" + two +
            "]}"));
    CHECK(table.buckets.back().overhead_ms == .25);
    CHECK(table.bucket(100, "k").target.ms[0] == 1);
    CHECK(table.bucket(101, "k").target.ms[0] == 3);
    CHECK_THROWS_WITH_AS(table.bucket(901, "k"),
                         "k: expected a context of up to 900 tokens, found 901", Error);
    CHECK_THROWS_WITH_AS(table.bucket(0, "k"),
                         "k: expected a context of up to 900 tokens, found none", Error);
  }

  TEST_CASE("tables that make no sense") {
    const auto bucket = [](const std::string& target, const std::string& draft) {
      return R"({"target": )" + target + R"(, "draft": )" + draft + "}";
    };
    const std::string one = R"({"tokens": [1], "ms": [1]})";
    CHECK(timing_error("") == "t.json: expected at least one bucket, found none");
    CHECK(timing_error(bucket(R"({"tokens": [2, 4], "ms": [1, 2]})", one)) ==
          "t.json: buckets[0].target begins at 2 tokens, expected 1");
    CHECK(timing_error(bucket(R"({"tokens": [1, 1], "ms": [1, 2]})", one)) ==
          "t.json: buckets[0].target: token count 1 follows 1, expected ascending counts from 1");
    CHECK(timing_error(bucket(one, R"({"tokens": [1], "ms": [-1]})")) ==
          "t.json: buckets[0].draft: -1 ms for 1 tokens, expected a time from 0 to 1e9");
    CHECK(timing_error(bucket(one, R"({"tokens": [1, 2], "ms": [1]})")) ==
          "t.json: buckets[0].draft: found 2 token counts and 1 times, expected equal numbers of "
          "at least 1");
    CHECK(timing_error(bucket(one, one) + "," + bucket(one, one)) ==
          "t.json: buckets[1].context is 0 after 0, expected ascending contexts");
    const auto of_batch = [&](int batch, int context) {
      return fmt::format(R"({{"batch": {}, "context": {}, "target": {}, "draft": {}}})", batch,
                         context, one, one);
    };
    CHECK(timing_error(of_batch(2, 100) + "," + of_batch(1, 200)) ==
          "t.json: buckets[1].batch is 1 after 2, expected ascending batches");
    CHECK(timing_error(of_batch(2, 100) + "," + of_batch(2, 100)) ==
          "t.json: buckets[1].context is 100 after 100, expected ascending contexts");
    CHECK(timing_error("3") == "t.json: buckets[0]: expected an object, found the number 3");
    CHECK(input_error_text([] { parse_timing("[]", "t.json"); }) ==
          "t.json: expected an object of format 'sequoia-timing/1', found an array of 0 items");
  }

  TEST_CASE("a timing table is read as it was written") {
    TimingTable table;
    table.buckets = {
        {.context = 512, .target = {{1, 2, 64}, {3.5, 3.75, 9}}, .draft = {{1, 8}, {0.5, 0.625}}},
        {.context = 4096, .target = {{1, 4}, {4, 5}}, .draft = {{1}, {1}}},
        {.batch = 16, .context = 512, .target = {{1, 4}, {8, 9}}, .draft = {{1}, {1}}}};
    for (StepCost& b : table.buckets) b.overhead_ms = 0.125, b.skip_deepest = true;
    const std::string text = timing_json(table, {{"device", "a machine"}});
    CHECK(text.find("\"device\": \"a machine\"") != std::string::npos);
    const TimingTable again = parse_timing(text, "t.json");
    REQUIRE(again.buckets.size() == 3);
    CHECK(again.buckets[2].overhead_ms == .125);
    CHECK(again.buckets[2].skip_deepest);
    CHECK(again.buckets[1].context == 4096);
    CHECK(again.buckets[1].batch == 1);
    CHECK(again.buckets[2].batch == 16);
    CHECK_THROWS_WITH_AS(again.bucket(512, "k"),
                         "k: the timing table has batches from 1 to 16, expected one", Error);
    CHECK(again.buckets[0].target.tokens == table.buckets[0].target.tokens);
    CHECK(again.buckets[0].draft.ms == table.buckets[0].draft.ms);
  }

  TEST_CASE("the price of a given tree is that of the choice which finds it") {
    const AcceptanceVector v = vector_of({{0.7, 0.15, 0.05}});
    StepCost times = steps_of({{1, 8, 16}, {10, 10.5, 12}}, {{1, 4}, {0.5, 0.75}});
    times.overhead_ms = 0.3;
    times.skip_deepest = true;
    const TreeTable table = table_of(v, 12, 6);
    const Ints sizes = {4, 8, 12};
    const TreeChoice choice = choose_tree(table, v, sizes, 6, times);
    const TokenTree tree = table.tree(choice.best.size, choice.best.levels);
    const PricedTree same = price_tree(tree, expected_tokens(tree, v), times);
    CHECK(same.cost.ms_per_token == doctest::Approx(choice.best.cost.ms_per_token).epsilon(1e-12));
    CHECK(same.levels == choice.best.levels);
  }
}
