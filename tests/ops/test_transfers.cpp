#include "ops/transfers.h"

#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "ops/sampling.h"

using namespace tandem;

TEST_SUITE("ops/transfers") {
  TEST_CASE("ids go to their slots and come back, those from the limit on as 0") {
    std::vector<int32_t> last{10, 11, 12, 13, 14};
    const std::vector<int32_t> slot{3, 0, 4};
    std::vector<int32_t> ids{7, 9, 8};
    SlotIdsParams p{.last = last.data(), .slot = slot.data(), .ids = ids.data(), .n = 3};
    ops::store_slot_ids(p, {});
    CHECK(last == std::vector<int32_t>{9, 11, 12, 7, 8});
    ids.assign(3, -5);
    ops::load_slot_ids(p, {});
    CHECK(ids == std::vector<int32_t>{7, 9, 8});
    p.limit = 8;
    ops::load_slot_ids(p, {});
    CHECK(ids == std::vector<int32_t>{7, 0, 0});
    p.n = 1;
    ids.assign(3, -5);
    ops::load_slot_ids(p, {});
    CHECK(ids == std::vector<int32_t>{7, -5, -5});
  }

  TEST_CASE("host_copy copies as many bytes as it is told") {
    std::vector<uint32_t> from{1, 2, 3, 4, 5, 6, 7, 8}, to(8, 0);
    ops::host_copy({.to = to.data(), .from = from.data(), .bytes = 16}, {});
    CHECK(to == std::vector<uint32_t>{1, 2, 3, 4, 0, 0, 0, 0});
    ops::host_copy({.to = to.data(), .from = to.data(), .bytes = 32}, {});
    CHECK(to == std::vector<uint32_t>{1, 2, 3, 4, 0, 0, 0, 0});
    ops::host_copy({.to = nullptr, .from = nullptr, .bytes = 0}, {});
  }

  TEST_CASE("read_clock tells nanoseconds") {
    uint64_t ns[2] = {};
    const auto begun = std::chrono::steady_clock::now();
    ops::read_clock(ns, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ops::read_clock(ns + 1, {});
    const std::chrono::duration<double, std::nano> all = std::chrono::steady_clock::now() - begun;
    CHECK(ns[1] - ns[0] >= 20'000'000);
    CHECK(static_cast<double>(ns[1] - ns[0]) <= all.count());
  }

  TEST_CASE("widen_rows adds ids without probability, or leaves ids out") {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const std::vector<float> in{1, 2, 3, 4, 5, 6};
    const auto widened = [&](int to) {
      std::vector<float> out(static_cast<size_t>(2 * to));
      ops::widen_rows({.out = out.data(), .in = in.data(), .n_rows = 2, .from = 3, .to = to}, {});
      return out;
    };
    CHECK(widened(5) == std::vector<float>{1, 2, 3, kNone, kNone, 4, 5, 6, kNone, kNone});
    CHECK(widened(3) == in);
    CHECK(widened(2) == std::vector<float>{1, 2, 4, 5});
  }
}
