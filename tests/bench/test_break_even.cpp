#include <doctest/doctest.h>

#include "bench/break_even.h"

using namespace tandem::bench;

TEST_SUITE("bench/break_even") {
  TEST_CASE("the crossing is on the line between the contexts around it") {
    const std::vector<DecodeTime> times = {
        {"m", 1, "full", 1000, 10}, {"m", 1, "full", 2000, 20}, {"m", 1, "full", 4000, 40},
        {"m", 1, "lsh", 1000, 15},  {"m", 1, "lsh", 2000, 16},  {"m", 1, "lsh", 4000, 18},
        {"m", 2, "lsh", 1000, 1},  // no full attention at this batch
        {"m", 1, "early", 1000, 9}, {"m", 1, "late", 4000, 40}};
    const auto lines = break_even(times);
    REQUIRE(lines.size() == 3);
    CHECK(
        lines[0] ==
        "m, batch 1: early is faster than full attention from the shortest context measured, 1000");
    CHECK(lines[1] == "m, batch 1: late is not faster than full attention up to 4000 tokens");
    // 5 ms slower at 1000, 4 ms faster at 2000.
    CHECK(
        lines[2] ==
        "m, batch 1: lsh overtakes full attention at about 1556 tokens (slower at 1000, faster at "
        "2000)");
  }
}
