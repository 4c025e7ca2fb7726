#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "bench/break_even.h"

using namespace tandem::bench;

namespace {

DecodeTime full(int context, double ms) {
  return {.model = "m", .method = "full", .full = true, .context = context, .ms = ms};
}
DecodeTime sparse(const char* method, int context, double ms) {
  return {.model = "m", .method = method, .context = context, .ms = ms};
}
DecodeTime hosted(DecodeTime time) {
  time.method += " host";
  time.hosted = true;
  return time;
}

}  // namespace

TEST_SUITE("bench/break_even") {
  TEST_CASE("the crossing is on the line between the contexts around it") {
    const std::vector<DecodeTime> times = {
        full(1000, 10),
        full(2000, 20),
        full(4000, 40),
        sparse("lsh", 1000, 15),
        sparse("lsh", 2000, 16),
        sparse("lsh", 4000, 18),
        {.model = "m", .batch = 2, .method = "lsh", .context = 1000, .ms = 1},  // without full
        sparse("early", 1000, 9),
        sparse("late", 4000, 40)};
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

  TEST_CASE("keys in host memory are set against full attention to them, too, its better way") {
    const std::vector<DecodeTime> times = {full(1000, 1),
                                           hosted(full(1000, 10)),  // two ways: cpu, gpu
                                           hosted(full(1000, 30)),
                                           hosted(full(2000, 40)),
                                           hosted(full(2000, 20)),
                                           hosted(sparse("lsh", 1000, 12)),
                                           hosted(sparse("lsh", 2000, 14)),
                                           sparse("lsh", 1000, 2)};
    const auto lines = break_even(times);
    REQUIRE(lines.size() == 3);
    CHECK(lines[0] == "m, batch 1: lsh is not faster than full attention up to 1000 tokens");
    CHECK(lines[1] == "m, batch 1: lsh host is not faster than full attention up to 1000 tokens");
    // 2 ms slower at 1000, 6 faster at 2000.
    CHECK(lines[2] ==
          "m, batch 1: lsh host overtakes full attention over offloaded KV at about 1250 tokens "
          "(slower at 1000, faster at 2000)");
  }

  TEST_CASE("decode steps of records are compared on one device with one number of threads") {
    const auto record = [](const char* method, int threads) {
      return Json{{"host", {{"threads_used", threads}}},
                  {"model", {{"name", "m"}}},
                  {"workload", {{"batch", 2}, {"context_tokens", 100}, {"method", method}}},
                  {"timing", {{"decode_step", {{"p50", 3.5}}}}}};
    };
    const auto times = decode_times({record("full host", 1), record("quest 16 0.05", 1)});
    REQUIRE(times.size() == 2);
    CHECK(times[0].full);
    CHECK(times[0].hosted);
    CHECK_FALSE(times[1].full);
    CHECK(times[1].batch == 2);
    CHECK(times[1].context == 100);
    CHECK(times[1].ms == 3.5);
    CHECK(decode_times({record("full", 1), record("quest 16 0.05", 2)}).empty());
  }
}
