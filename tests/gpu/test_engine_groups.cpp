// Page groups on a GPU: graphs, rounds that are laid out ahead, and keys in host memory read the
// tables of their layers.
#include "gpu/engine_pair.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;

namespace {

const std::filesystem::path kMixed = small_model("qwen2-layer-types");

/// Room for few rows beside a window of 24 tokens.
Setup narrow(std::vector<recipe::Cache> caches = {{}}) {
  return {.chunk = 100, .caches = std::move(caches), .logit_rows = 16};
}

std::vector<decode::Request> requests_of(const decode::Engine& engine) {
  std::vector<decode::Request> all;
  for (const int n : {3, 70, 150}) all.push_back(request(random_ids(engine, n, 9)));
  return all;
}

}  // namespace

TEST_SUITE("gpu/decode/groups") {
  TEST_CASE("f32: graphs of decode steps write the CPU's text over the ends of pages") {
    const EnginePair on = make_pair_of(kMixed, narrow());
    const auto requests = requests_of(*on.cpu);
    const Generated want = generate(*on.cpu, requests, rules(200)),
                    got = generate(*on.gpu, requests, rules(200));
    CHECK(got.ids == want.ids);
    CHECK(all_free(on.gpu->cache()));
  }

  TEST_CASE("f32: rounds laid out ahead write the target's text: chains, trees, draft and itself") {
    Setup setup = narrow({{}, snapkv(40, 8)});
    setup.device = kGpu;
    const auto target = make_engine(kMixed, setup);
    setup.caches = {{}};
    setup.queue = target->queue();
    const auto draft = make_engine(kMixed, setup);
    check_rounds(*target, *draft, 200);
  }

  TEST_CASE("f32: keys of layers without a window in host memory: the CPU's text") {
    recipe::Cache host;
    host.place = recipe::CachePlace::host;
    for (const recipe::Attend attend : {recipe::Attend::cpu, recipe::Attend::gpu}) {
      host.attend = attend;
      Setup setup = narrow({host});
      setup.device = kGpu;
      const auto split = make_engine(kMixed, setup), one = make_engine(kMixed, narrow());
      const auto requests = requests_of(*one);
      CHECK(generate(*split, requests, rules(200)).ids == generate(*one, requests, rules(200)).ids);
      CHECK(all_free(split->cache()));
    }
  }
}
