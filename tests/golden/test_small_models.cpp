#include <doctest/doctest.h>

#include "golden/golden_checks.h"

using namespace golden;

TEST_SUITE("golden/small") {
  TEST_CASE("f32 logits, NLL and greedy text of every supported architecture equal transformers'") {
    check_small_models({});
  }
}
