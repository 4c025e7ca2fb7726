#include <doctest/doctest.h>

#include <sys/resource.h>

#include <cstring>

#include "tensor/arena.h"
#include "tensor/cuda.h"
#include "tensor/driver_memory.h"

using namespace tandem;

TEST_SUITE("tensor/memory_plan") {
  TEST_CASE("without a file descriptor to spare, memory is what the machine has, not nothing") {
    const size_t told = available_host_bytes();
    CHECK(told > 0);
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit none = before;
    none.rlim_cur = 0;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    const size_t untold = available_host_bytes();
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(untold > 0);
    CHECK(untold >= peak_resident_bytes());
  }

  TEST_CASE("the peak counts loading and running apart") {
    MemoryPlan plan;
    plan.add("weights/a", 1000);
    plan.add("load/staging", 700, {}, Lifetime::load);
    plan.add("kv/pages", 500);
    CHECK(plan.peak({}) == 1700);  // weights + staging, the cache comes later
    plan.add("kv/tables", 600);
    CHECK(plan.peak({}) == 2100);
    CHECK(plan.group_bytes("kv", {}) == 1100);
    CHECK(plan.groups() == std::vector<std::string>{"weights", "load", "kv"});
    CHECK_THROWS_AS(plan.add("kv/pages", 1), Error);
    // So does the program itself, and an embedding that stays in host memory.
    plan.add("process/program", 800);
    CHECK(plan.peak({}) == 2900);
    plan.add("embedding/rows", 900);
    CHECK(plan.peak({}) == 3800);
    plan.add("load/more", 500, {}, Lifetime::load);
    CHECK(plan.peak({}) == 1000 + 800 + 900 + 1200);
  }

  TEST_CASE("what a GPU holds without buffers is planned as a record of another has it") {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    MemoryPlan plan;
    plan_driver({}, DType::bf16, /*is_here=*/true, size_t{1} << 30, plan);
    CHECK(plan.items().empty());
    CHECK(driver_bytes({}, true) == 0);
    CHECK(driver_bytes(kGpu, false) == size_t{548} << 20);
    plan_driver(kGpu, DType::bf16, /*is_here=*/false, size_t{45} << 30, plan);
    CHECK(plan.peak(kGpu) == size_t{548 + 90} << 20);
    CHECK(plan.parts(kGpu) == "process 638.0 MiB");
    // Of a GPU that is here, the process holds the driver's share of the host's memory already.
    CHECK(plan.parts({}) == "process 325.0 MiB, gpu 108.0 MiB");
    MemoryPlan here;
    plan_host_driver(kGpu, DType::f32, /*is_here=*/true, here);
    CHECK(here.parts({}) == "gpu 172.0 MiB");
  }

  TEST_CASE("too little memory names the groups and a remedy") {
    MemoryPlan plan;
    plan.add("weights/a", size_t{3} << 30);
    plan.add("kv/pages", size_t{1} << 30);
    plan.check_fits({}, size_t{4} << 30);
    try {
      plan.check_fits({}, size_t{2} << 30);
      FAIL("not thrown");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::memory);
      CHECK(std::string(e.what()) ==
            "cpu: needs 4.00 GiB (weights 3.00 GiB, kv 1.00 GiB), 2.00 GiB available");
      CHECK(!e.hint_text().empty());
    }
  }

  TEST_CASE("what a GPU lacks is told apart from what the host lacks") {
    constexpr Device kGpu{Device::Kind::cuda, 1};
    MemoryPlan plan;
    plan.add("weights/a", size_t{3} << 30, kGpu);
    plan.add("kv/pages", size_t{1} << 30);
    plan.check_fits({}, size_t{1} << 30);
    try {
      plan.check_fits(kGpu, size_t{2} << 30);
      FAIL("not thrown");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::memory);
      CHECK(std::string(e.what()) ==
            "cuda:1: needs 3.00 GiB (weights 3.00 GiB), 2.00 GiB available");
      CHECK(e.hint_text().find("run.gpu_memory_limit") != std::string::npos);
      CHECK(e.hint_text().find("host") == std::string::npos);
    }
  }

  TEST_CASE("an arena takes planned GPU memory from a GPU, never from the host") {
    if (cuda::device_count() > 0) return;  // tests/gpu takes some there
    MemoryPlan plan;
    plan.add("weights/a", 4096, {Device::Kind::cuda, 0});
    Arena arena(plan);
    try {
      arena.take("weights/a");
      FAIL("not thrown");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::device);
    }
  }

  TEST_CASE("the arena hands out what was planned and nothing else") {
    MemoryPlan plan;
    plan.add("weights/a", 10000);
    plan.add("load/staging", 5000, {}, Lifetime::load);
    Arena arena(plan);
    char* p = static_cast<char*>(arena.take("weights/a"));
    CHECK(p[0] == 0);
    CHECK(p[9999] == 0);
    std::memset(p, 1, 10000);
    CHECK_THROWS_AS(arena.take("weights/a"), Error);
    CHECK_THROWS_AS(arena.take("weights/b"), Error);
    arena.take("load/staging");
    arena.give_back("load/staging");
    CHECK(arena.take("load/staging") != nullptr);
  }

  TEST_CASE("the peak of resident memory, and counting it anew") {
    constexpr size_t kBytes = size_t{64} << 20;
    MemoryPlan plan;
    plan.add("weights/a", kBytes);
    Arena arena(plan);
    std::memset(arena.take("weights/a"), 1, kBytes);
    const size_t peak = peak_resident_bytes();
    CHECK(peak >= kBytes);
    arena.give_back("weights/a");
    CHECK(peak_resident_bytes() >= kBytes);
    if (!reset_peak_resident()) return;  // a kernel without that file
    CHECK(peak_resident_bytes() <= peak - kBytes / 2);
  }
}
