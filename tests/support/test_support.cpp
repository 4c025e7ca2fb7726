// The table of docs/guide/models.md: every method on a tiny model of every family.
#include <doctest/doctest.h>

#include "support/table.h"

using namespace tandem::support;

TEST_SUITE("support") {
  TEST_CASE("methods run or are refused as the table says, on the CPU and in plans for a GPU") {
    MESSAGE("skipped: runs on a GPU, which test_gpu_support makes");
    check_cells({Place::cpu, Place::plan});
  }
}
