#include <doctest/doctest.h>

#include <algorithm>

#include "generate_runs.h"
#include "speculate/measure/timed_rounds.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

TEST_SUITE("bench/round_times") {
  TEST_CASE("sizes grow by halves and thirds, and end at the largest") {
    CHECK(timed_sizes(1) == std::vector<int>{1});
    CHECK(timed_sizes(2) == std::vector<int>{1, 2});
    CHECK(timed_sizes(16) == std::vector<int>{1, 2, 3, 4, 6, 8, 12, 16});
    CHECK(timed_sizes(20) == std::vector<int>{1, 2, 3, 4, 6, 8, 12, 16, 20});
  }

  TEST_CASE("a table that the choice of trees can read, and engines as they were") {
    const Setup room{.max_seqs = 3, .max_tokens = 256};
    const auto target = make_engine(tiny_model("tiny-16m"), room),
               draft = make_engine(tiny_model("tiny-2m"), room);
    const int pages = target->cache().store().free_pages(),
              draft_pages = draft->cache().store().free_pages();
    RoundTimesSpec spec;
    spec.contexts = {40, 100};
    spec.largest_tree = 12;
    spec.batch = 2;
    double share = 0;
    const speculate::TimingTable table = measure_rounds(*target, *draft, spec, [&](double done) {
      CHECK(done > share);
      share = done;
      return true;
    });
    CHECK(share == doctest::Approx(1));
    speculate::check_timing(table, "measured");
    REQUIRE(table.buckets.size() == 2);
    for (const speculate::StepCost& b : table.buckets) {
      CHECK(b.skip_deepest);
      CHECK(b.target.tokens == timed_sizes(12));
      CHECK(b.draft.tokens == std::vector<int>{1, 2, 3, 5});  // brooms of up to 12 nodes
      CHECK(*std::ranges::min_element(b.target.ms) > 0);
      CHECK(b.draft.ms.front() > 0);
      CHECK(*std::ranges::min_element(b.draft.ms) == b.draft.ms.front());
    }
    CHECK(table.buckets[1].context == 100);
    CHECK(target->cache().store().free_pages() == pages);
    CHECK(draft->cache().store().free_pages() == draft_pages);
    CHECK_THROWS_AS(measure_rounds(*target, *draft, spec, [](double) { return false; }), Error);
    CHECK(target->cache().store().free_pages() == pages);
  }
}
