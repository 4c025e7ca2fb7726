// Plans for a card of the table, beside those that the machine's own GPU gives.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "decode/fit/placement.h"
#include "gpu/engine_pair.h"
#include "tensor/driver_memory.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

/// The table's card of this machine's GPU; where it has none, any card with its multiprocessors.
GpuCard own_card() {
  const cuda::DeviceInfo info = cuda::device_info(0);
  for (const GpuCard& card : gpu_cards())
    if (card.title == info.name) return card;
  GpuCard card = any_gpu_card(info.total_bytes);
  card.multiprocessors = info.multiprocessors;
  return card;
}

}  // namespace

TEST_SUITE("gpu/decode/plan") {
  TEST_CASE("the table says of this machine's GPU what that says of itself") {
    const GpuCard card = own_card();
    const cuda::DeviceInfo info = cuda::device_info(0);
    CAPTURE(info.name);
    CHECK(card.multiprocessors == info.multiprocessors);
    CHECK(card.memory_bytes <= info.total_bytes);
    // Drivers differ by some 100 MiB in what they keep.
    CHECK(static_cast<double>(card.memory_bytes) > 0.98 * static_cast<double>(info.total_bytes));
  }

  TEST_CASE("a plan for the card is that of a run, buffer by buffer") {
    // A card is planned for with the kernels that it runs; a run that is forced to others differs.
    if (cuda::gpu().isa !=
        (own_card().capability == 90 ? cuda::GpuIsa::hopper : cuda::GpuIsa::portable))
      return;
    const decode::ModelFiles files = decode::open_model(tiny_model("tiny-16m").string(), 0);
    for (const int max_tree_rows : {0, 128})
      for (const int n_streamed : {0, 2})
        for (const DType compute : {DType::bf16, DType::f32}) {
          decode::EngineSpec spec = engine_spec({.total_tokens = 40000, .device = kGpu});
          spec.max_tree_rows = max_tree_rows;
          spec.savings.n_streamed = n_streamed;
          spec.compute = compute;
          const MemoryPlan run = Engine::plan(files, spec);
          spec.plan_for = own_card();
          const MemoryPlan planned = Engine::plan(files, spec);
          REQUIRE(planned.find(kHostDriverItem) != nullptr);  // which a run's program holds
          REQUIRE(planned.items().size() == run.items().size() + 1);
          for (const PlanItem& item : run.items()) {
            if (item.name.starts_with("process/")) continue;  // that holds the driver, once there
            const PlanItem* other = planned.find(item.name);
            REQUIRE(other != nullptr);
            INFO(item.name);
            CHECK(other->bytes == item.bytes);
            CHECK(other->device == item.device);
          }
        }
  }

  TEST_CASE("a plan for a card that is named leaves this machine's GPU out of it") {
    recipe::Run run;
    run.plan_for = recipe::GpuName{"rtx-4090"};
    CHECK_FALSE(decode::choose_placement(run, {}, /*dry_run=*/false).plan_for);
    const decode::Placement place = decode::choose_placement(run, {}, /*dry_run=*/true);
    CHECK(place.device == kGpu);
    REQUIRE(place.plan_for);
    CHECK(place.plan_for->name == "rtx-4090");
    CHECK(decode::memory_limits(run, place).gpu_total == find_gpu_card("rtx-4090")->memory_bytes);
    // What asks for a GPU gets this machine's.
    run = {};
    run.gpu_memory_limit = recipe::ByteSize{int64_t{8} << 30};
    CHECK_FALSE(decode::choose_placement(run, {}, /*dry_run=*/true).plan_for);
  }
}
