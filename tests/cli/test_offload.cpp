#include <doctest/doctest.h>

#include <functional>

#include "cli/probe.h"
#include "decode/fit/sizing.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};
constexpr size_t kGiB = size_t{1} << 30;

/// Ten layers of a GiB and 3 GiB beside them; two buffers, once there is something to stream.
MemoryPlan plan_of(const decode::Savings& s) {
  MemoryPlan plan;
  plan.add("kv/pages", 3 * kGiB, kGpu);
  plan.add("weights/resident", static_cast<size_t>(10 - s.n_streamed) * kGiB, kGpu);
  plan.add("weights/pinned", static_cast<size_t>(s.n_streamed) * kGiB);
  plan.add("ring/buffers", static_cast<size_t>(std::min(s.n_streamed, 2)) * kGiB, kGpu);
  return plan;
}

/// The same with an embedding of 2 GiB, and 3 GiB of the longest prompt's rows.
MemoryPlan plan_with_prompts(const decode::Savings& s) {
  MemoryPlan plan = plan_of(s);
  plan.add("embedding/rows", 2 * kGiB, s.host_embedding ? Device{} : kGpu);
  plan.add("activations/prompt", 3 * kGiB / static_cast<size_t>(s.prompt_passes), kGpu);
  return plan;
}

/// The same with keys of 1 GiB a layer, and a ring of up to two layers where not all stay.
MemoryPlan plan_with_keys(const decode::Savings& s) {
  MemoryPlan plan = plan_with_prompts(s);
  plan.add("kv/k", static_cast<size_t>(s.resident_layers) * kGiB, kGpu);
  plan.add("kv/host/k", static_cast<size_t>(10 - s.resident_layers) * kGiB);
  const auto eighths = static_cast<size_t>(decode::Savings::kWholeRing + s.ring_eighths);
  plan.add("kv/ring", s.resident_layers < 10 ? eighths * kGiB / 8 : 0, kGpu);
  return plan;
}

decode::Savings savings(recipe::Offload offload, size_t limit, size_t free_bytes,
                        const std::function<MemoryPlan(const decode::Savings&)>& plan,
                        int key_layers = 0) {
  model::ModelConfig config;
  config.n_layers = 10;
  const decode::MemoryLimits limits{.host = 100 * kGiB,
                                    .gpu = kGpu,
                                    .gpu_bytes = limit,
                                    .gpu_free = free_bytes,
                                    .gpu_total = free_bytes,
                                    .gpu_limited = limit < free_bytes};
  return decode::savings_of(offload, config, limits, plan, key_layers);
}

int chosen(recipe::Offload offload, size_t limit, size_t free_bytes) {
  const decode::Savings s = savings(offload, limit, free_bytes, plan_of);
  // Nothing to save there.
  CHECK_FALSE(s.host_embedding);
  CHECK(s.prompt_passes == 1);
  return s.n_streamed;
}

constexpr recipe::Offload kAuto{recipe::Offload::kAuto};

}  // namespace

TEST_SUITE("cli/offload") {
  TEST_CASE("auto with sets: channels beyond them first, then sets, then attention") {
    model::ModelConfig config;
    config.n_layers = 10;
    const auto savings_for = [&](recipe::Offload offload, size_t limit) {
      const decode::MemoryLimits limits{.host = 100 * kGiB,
                                        .gpu = kGpu,
                                        .gpu_bytes = limit,
                                        .gpu_free = 100 * kGiB,
                                        .gpu_total = 100 * kGiB,
                                        .gpu_limited = true};
      const auto plan = [](const decode::Savings& s) {
        // Attention of a GiB a layer, sets of 2, the rest of 3.
        const model::StreamedParts n =
            model::streamed_parts(10, {.n_streamed = s.n_streamed, .set_channels = s.set_channels});
        MemoryPlan p;
        p.add("weights/a", static_cast<size_t>(60 - n.attention - 2 * n.ffn - 3 * n.rest) * kGiB,
              kGpu);
        return p;
      };
      return decode::savings_of(offload, config, limits, plan, 0, 7);
    };
    const auto check = [&](recipe::Offload offload, size_t gib, int parts) {
      const decode::Savings s = savings_for(offload, gib * kGiB);
      CHECK(s.n_streamed == parts);
      CHECK(s.set_channels == (parts > 0 ? 7 : 0));
    };
    check(kAuto, 60, 0);
    check(kAuto, 59, 1);
    check(kAuto, 30, 10);
    check(kAuto, 29, 11);
    check(kAuto, 10, 20);
    check(kAuto, 4, 26);
    check({4}, 60, 4);
    check({}, 20, 0);
  }

  TEST_CASE("auto streams the fewest layers with which the plan fits") {
    CHECK(chosen(kAuto, 13 * kGiB, 100 * kGiB) == 0);
    CHECK(chosen(kAuto, 13 * kGiB - 1, 100 * kGiB) == 3);  // two of them only pay for the ring
    CHECK(chosen(kAuto, 12 * kGiB, 100 * kGiB) == 3);
    CHECK(chosen(kAuto, 11 * kGiB, 100 * kGiB) == 4);
    CHECK(chosen(kAuto, 5 * kGiB, 100 * kGiB) == 10);
    CHECK(chosen(kAuto, 1 * kGiB, 100 * kGiB) == 10);  // the plan's check then says what is missing
    // Of memory that is merely free, some is left.
    CHECK(chosen(kAuto, 13 * kGiB, 13 * kGiB) == 3);
    CHECK(chosen(kAuto, 14 * kGiB, 14 * kGiB) == 0);
  }

  TEST_CASE("a number is taken as it is, up to that of the layers") {
    CHECK(chosen({0}, kGiB, kGiB) == 0);
    CHECK(chosen({7}, 100 * kGiB, 100 * kGiB) == 7);
    CHECK(chosen({10}, kGiB, kGiB) == 10);
    CHECK_THROWS_WITH_AS(chosen({11}, kGiB, kGiB),
                         "model.offload: is 11 layers, but the model has only 10", Error);
  }

  TEST_CASE("what costs least is saved first: the embedding, passes of prompts, layers") {
    const auto text = [](recipe::Offload offload, size_t limit) {
      return savings(offload, limit, 100 * kGiB, plan_with_prompts).text(10);
    };
    constexpr recipe::Offload kNone{0};
    for (const recipe::Offload offload : {kNone, kAuto}) {
      CHECK(text(offload, 18 * kGiB) == "");
      CHECK(text(offload, 18 * kGiB - 1) == "embedding in host memory");
      CHECK(text(offload, 16 * kGiB) == "embedding in host memory");
      CHECK(text(offload, 16 * kGiB - 1) ==
            "embedding in host memory, layer-wise prefill in 2 passes");
      CHECK(text(offload, 14 * kGiB) == "embedding in host memory, layer-wise prefill in 3 passes");
      CHECK(text(offload, 13 * kGiB + kGiB / 2) ==
            "embedding in host memory, layer-wise prefill in 6 passes");
    }
    // Nothing helps but layers.
    CHECK(text(kNone, 12 * kGiB) == "embedding in host memory, layer-wise prefill in 8 passes");
    CHECK(text(kAuto, 12 * kGiB) ==
          "embedding in host memory, layer-wise prefill in 8 passes, 4 of 10 layers offloaded to "
          "host memory");
    CHECK(text({7}, 10 * kGiB) ==
          "embedding in host memory, layer-wise prefill in 2 passes, 7 of 10 layers offloaded to "
          "host memory");
  }

  TEST_CASE("keys stay on the GPU in as many layers as there is room for, once the rest fits") {
    const auto text = [](recipe::Offload offload, size_t limit) {
      return savings(offload, limit, 100 * kGiB, plan_with_keys, 10).text(10);
    };
    CHECK(text({0}, 28 * kGiB) == "KV cache of 10 layers on the GPU");
    CHECK(text({0}, 28 * kGiB - 1) ==
          "KV cache of 8 layers on the GPU, KV staging ring of 1 7/8 layers");
    CHECK(text({0}, 23 * kGiB) == "KV cache of 3 layers on the GPU");
    CHECK(text({0}, 20 * kGiB) == "");
    CHECK(text({0}, 20 * kGiB - 1) == "KV staging ring of 1 7/8 layers");
    CHECK(text({0}, 19 * kGiB) == "embedding in host memory, KV cache of 1 layers on the GPU");
    CHECK(text(kAuto, 12 * kGiB) ==
          "embedding in host memory, layer-wise prefill in 8 passes, 5 of 10 layers offloaded to "
          "host memory, KV staging ring of 1 5/8 layers");
    CHECK(savings({0}, 28 * kGiB, 100 * kGiB, plan_with_keys).resident_layers == 0);
  }

  TEST_CASE("on the CPU it is an error of every tool that runs models") {
    for (const std::string name :
         {"pig-generate", "pig-eval", "pig-bench", "sequoia-generate", "sequoia-acceptance"}) {
      CAPTURE(name);
      // What the others need to get as far.
      const bool pairs = name.find("sequoia") != std::string::npos;
      Launch launch;
      launch.arguments = {"-m",       "tiny-2m", "--device", "cpu", "-s", "model.offload=auto",
                          "--dry-run"};
      if (pairs) launch.arguments.insert(launch.arguments.end(), {"-s", "draft.path=tiny-2m"});
      if (name.find("sequoia-generate") != std::string::npos)
        launch.arguments.insert(launch.arguments.end(), {"-s", "spec.draft=ngram"});
      if (name.find("pig-eval") != std::string::npos)
        launch.arguments.insert(launch.arguments.end(), {"-s", "eval.tasks=[perplexity]"});
      const Outcome run = run_process(program(name), launch);
      CHECK(run.status == 3);
      const std::string text = "is auto, which needs a GPU, but this run is on the CPU";
      CHECK((run.err + run.out).find(text) != std::string::npos);
    }
  }
}
