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

bool all_free(const kv::Cache& cache) {
  for (const int layer : {0, 1})
    if (cache.whole_store(layer).free_pages() != cache.whole_store(layer).spec().n_pages)
      return false;
  return true;
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
    const auto requests = requests_of(*target);
    const Generated plain = generate(*target, requests, rules(200));
    for (const speculate::TokenTree& tree :
         {speculate::chain_tree(2), speculate::chain_tree(5), tree_of({2, 1, 1, 0, 1, 0})})
      for (const bool itself : {false, true}) {
        CAPTURE(tree.size());
        CAPTURE(itself);
        const auto rounds = itself ? speculate::model_rounds(*target, {*target, {.keys = 1}}, tree)
                                   : speculate::model_rounds(*target, *draft, tree);
        CHECK(generate(*target, requests, rules(200), rounds.get()).ids == plain.ids);
        CHECK(rounds->stats().accepted > 0);
        CHECK(all_free(target->cache()));
        CHECK(all_free(draft->cache()));
      }
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
