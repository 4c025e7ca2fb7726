#include <doctest/doctest.h>

#include "decode/state.h"
#include "gpu/engine_pair.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

/// A sequence of `to` that holds what a file holds.
int restore(const std::filesystem::path& path, Engine& to) {
  const auto state = decode::open_state(path, to.files(), to.cache().geometry().dtype);
  return decode::restore_state(state, to, 0);
}

}  // namespace

TEST_SUITE("gpu/decode/state") {
  TEST_CASE("f32: what one device saved, the other takes up byte for byte and goes on with") {
    const TemporaryFolder folder;
    for (const recipe::Cache& cache : {recipe::Cache{}, streaming(4, 16), streaming(4, 40, true)}) {
      CAPTURE(static_cast<int>(cache.recent));
      const EnginePair on =
          make_pair_of(tiny_model("tiny-2m"), {.max_seqs = 16, .caches = {cache}});
      for (const int length : {1, 64, 300})
        for (const bool gpu_saves : {true, false}) {
          CAPTURE(length);
          CAPTURE(gpu_saves);
          Engine &from = gpu_saves ? *on.gpu : *on.cpu, &to = gpu_saves ? *on.cpu : *on.gpu;
          const Ids ids = random_ids(from, length, 1), after = random_ids(from, 24, 2);
          const int saved = from.cache().create();
          prefill(from, saved, ids);
          decode::save_state(folder / "state", from, saved, ids);
          const int slot = restore(folder / "state", to);
          CHECK(to.cache().length(slot) == length);
          CHECK(live_ranges(to.cache(), slot) == live_ranges(from.cache(), saved));
          CHECK(committed_bytes(to.cache(), slot) == committed_bytes(from.cache(), saved));
          const double worst =
              max_difference(extend_each(to, slot, after), extend_each(from, saved, after));
          CHECK(worst <= kF32Tolerance);
          to.cache().release(slot);
          from.cache().release(saved);
        }
    }
  }

  TEST_CASE("a GPU's own state goes on bit for bit") {
    const TemporaryFolder folder;
    for (const DType compute : {DType::f32, DType::bf16}) {
      const Setup setup{.compute = compute, .device = kGpu};
      const auto first = make_engine(tiny_model("tiny-16m"), setup);
      const auto second = make_engine(tiny_model("tiny-16m"), setup);
      const Ids ids = random_ids(*first, 200, 3), after = random_ids(*first, 24, 4);
      const int saved = first->cache().create();
      prefill(*first, saved, ids);
      decode::save_state(folder / "state", *first, saved, ids);
      prefill(*second, second->cache().create(), random_ids(*second, 100, 5));  // other pages
      const int slot = restore(folder / "state", *second);
      CHECK(committed_bytes(second->cache(), slot) == committed_bytes(first->cache(), saved));
      CHECK(same(extend_each(*second, slot, after), extend_each(*first, saved, after)));
    }
  }
}
