#include <doctest/doctest.h>

#include "decode/fit/placement.h"

using namespace tandem;

namespace {

constexpr size_t kGiB = size_t{1} << 30;
constexpr Device kGpu{Device::Kind::cuda, 0};

MemoryPlan plan_of(size_t gpu_bytes) {
  MemoryPlan plan;
  plan.add("weights/a", gpu_bytes - kGiB, kGpu);
  plan.add("kv/k", kGiB, kGpu);
  return plan;
}

/// What is said of a plan that does not fit.
std::string refusal(const decode::MemoryLimits& limits, const MemoryPlan& plan) {
  try {
    limits.check(plan);
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::memory);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_SUITE("cli/memory_limits") {
  TEST_CASE("what other processes hold of a GPU is told apart from what it lacks") {
    const decode::MemoryLimits limits{.host = kGiB,
                                      .gpu = kGpu,
                                      .gpu_bytes = 3 * kGiB,
                                      .gpu_free = 3 * kGiB,
                                      .gpu_total = 80 * kGiB};
    CHECK(limits.fits(plan_of(3 * kGiB)));
    CHECK_FALSE(limits.fits(plan_of(4 * kGiB)));
    CHECK(refusal(limits, plan_of(3 * kGiB)) == "");
    CHECK(refusal(limits, plan_of(16 * kGiB)) ==
          "cuda:0: needs 16.00 GiB (weights 15.00 GiB, kv 1.00 GiB), but other processes leave "
          "only 3.00 GiB of 80.00 GiB free");
    // More than the card has, whoever holds it.
    CHECK(refusal(limits, plan_of(80 * kGiB)) ==
          "cuda:0: needs 80.00 GiB (weights 79.00 GiB, kv 1.00 GiB), 3.00 GiB available");
  }

  TEST_CASE("a limit of the recipe's is what it says") {
    const decode::MemoryLimits limits{.host = kGiB,
                                      .gpu = kGpu,
                                      .gpu_bytes = 2 * kGiB,
                                      .gpu_free = 3 * kGiB,
                                      .gpu_total = 80 * kGiB,
                                      .gpu_limited = true};
    CHECK(refusal(limits, plan_of(16 * kGiB)) ==
          "cuda:0: needs 16.00 GiB (weights 15.00 GiB, kv 1.00 GiB), 2.00 GiB available");
  }
}
