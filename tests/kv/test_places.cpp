#include <doctest/doctest.h>

#include <set>

#include "kv/step.h"

using namespace tandem;

TEST_SUITE("kv/places") {
  TEST_CASE("a batch that shrinks from 128 to 1 is recorded eight times") {
    std::set<int> recorded;
    for (int n = 128; n > 0; --n) {
      const int places = kv::places_for(n, 1, 1000);
      CHECK(places >= n);
      recorded.insert(places);
    }
    CHECK(recorded == std::set<int>{1, 2, 4, 8, 16, 32, 64, 128});
  }

  TEST_CASE("batches of many rows are padded by an eighth at most, and none beyond the room") {
    for (int n = 1; n <= 128; ++n) {
      CHECK(kv::places_for(n, 64, 1000) >= n);
      if (n > 8) CHECK(8 * (kv::places_for(n, 64, 1000) - n) <= 2 * n);
      CHECK(kv::places_for(n, 64, n) == n);
      CHECK(kv::places_for(n, 1, 100 > n ? 100 : n) <= (100 > n ? 100 : n));
    }
    CHECK(kv::places_for(8, 64, 1000) == 8);
    CHECK(kv::places_for(9, 64, 1000) == 10);
    CHECK(kv::places_for(100, 64, 1000) == 112);
  }
}
