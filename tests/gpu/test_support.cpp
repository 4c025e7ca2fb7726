// The GPU's part of the table of docs/guide/models.md; tests/support has the CPU's part.
#include <doctest/doctest.h>

#include "support/table.h"

using namespace tandem::support;

TEST_SUITE("gpu/support") {
  TEST_CASE("methods run or are refused on a GPU as the table says") { check_cells({Place::gpu}); }
}
