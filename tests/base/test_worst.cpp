#include "worst.h"

#include <doctest/doctest.h>

using tandem::test::worse;

TEST_SUITE("base/worst") {
  TEST_CASE("a NaN among errors passes no bound, wherever it stands") {
    CHECK(worse(1, 2) == 2);
    CHECK(worse(2, 1) == 2);
    CHECK_FALSE(worse(0, NAN) <= 1e30);
    CHECK_FALSE(worse(worse(0, NAN), 1) <= 1e30);
    CHECK_FALSE(worse(worse(1, NAN), 0) <= 1e30);
  }
}
