#include <doctest/doctest.h>

#include "base/error.h"
#include "base/parallel.h"
#include "machine/hardware.h"

using namespace tandem;
using namespace tandem::machine;

TEST_SUITE("bench/choice_probe") {
  TEST_CASE("scores a second and thread: millions at least, some billions at most") {
    const int threads = max_threads();
    const double gscores = measure_code_gscores(threads);
    MESSAGE(gscores << " G scores/s of " << threads << " threads");
    CHECK(gscores > 0.001 * threads);
    CHECK(gscores < 5.0 * threads);
  }

  TEST_CASE("it stops when asked to") {
    try {
      (void)measure_code_gscores(1, [] { return true; });
      FAIL("not interrupted");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::interrupted);
    }
  }
}
