#include <doctest/doctest.h>

#include "decode/state.h"
#include "generate_runs.h"
#include "policy_rig.h"
#include "temporary_folder.h"
#include "tree_runs.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::HybridTail;

namespace {

struct Named {
  std::string name;
  Cache cache;
};

/// Small budgets: everything that is chosen is a real choice.
std::vector<Named> kinds() {
  std::vector<Named> all;
  for (const CacheKind kind :
       {CacheKind::topk, CacheKind::oracle_sampling, CacheKind::quest, CacheKind::lsh,
        CacheKind::hybrid, CacheKind::snapkv, CacheKind::retrieval}) {
    Cache c = sparse_cache(kind);
    c.topk.ratio = c.quest.ratio = {0.1};
    c.lsh = {.bits = 5, .tables = 24};
    c.snapkv = snapkv(48, 8).snapkv;
    c.retrieval = retrieval(48, 8).retrieval;
    all.push_back({recipe::yaml_text(kind), c});
  }
  all.push_back({"hybrid sampled", all[4].cache});
  all.back().cache.hybrid.tail = HybridTail::sampled;
  return all;
}
std::vector<Named> everything() {
  std::vector<Named> all = kinds();
  std::erase_if(all, [](const Named& k) { return k.name == "oracle_sampling"; });
  for (Named& k : all) {
    k.cache.topk.ratio = k.cache.quest.ratio = {1.0};
    k.cache.lsh = {.bits = 1, .tables = 96, .min_hits = 1, .u_floor = 0};
    k.cache.snapkv.budget = k.cache.retrieval.budget = {400};
    k.cache.hybrid.exact = {1.0};
  }
  return all;
}

}  // namespace

TEST_SUITE("kv/sparse_engine") {
  TEST_CASE("f32: a budget of everything gives the logits of full attention") {
    for (const std::string model : {"llama-3.1", "llama-odd", "qwen2-tied", "qwen3-tied"}) {
      CAPTURE(model);
      const auto full = make_engine(small_model(model), {.max_seqs = 1});
      const Ids prompt = random_ids(*full, 300, 1), after = random_ids(*full, 4, 2);
      const std::vector<Row> want = run_alone(*full, prompt, after);
      for (const Named& kind : everything()) {
        CAPTURE(kind.name);
        const auto engine =
            make_engine(small_model(model), {.max_seqs = 1, .caches = {kind.cache}});
        CHECK(max_difference(run_alone(*engine, prompt, after), want) <= 2e-5);
      }
    }
  }

  TEST_CASE("tiny-2m, f32: a budget of everything beside full attention") {
    const auto full = make_engine(tiny_model("tiny-2m"), {.max_seqs = 1, .max_tokens = 320});
    const Ids prompt = random_ids(*full, 300, 1), after = random_ids(*full, 3, 2);
    const std::vector<Row> want = run_alone(*full, prompt, after);
    double largest = 0;
    for (const float x : want[0]) largest = std::max(largest, double{std::abs(x)});
    for (const Named& kind : everything()) {
      CAPTURE(kind.name);
      const auto engine = make_engine(tiny_model("tiny-2m"),
                                      {.max_seqs = 1, .max_tokens = 320, .caches = {kind.cache}});
      CHECK(max_difference(run_alone(*engine, prompt, after), want) <=
            1e-5 * std::max(1.0, largest));
    }
  }

  // Retrieval reads fewer chunks with the first row that is committed: test_retrieval.cpp.
  TEST_CASE("f32: rows of a chunk, ragged batches and single sequences agree bit for bit") {
    for (const Named& kind : kinds()) {
      if (kind.name == "retrieval") continue;
      CAPTURE(kind.name);
      const auto engine = make_engine(small_model("llama-3.1"), {.caches = {kind.cache}});
      const int lengths[] = {200, 3, 60};
      std::vector<Ids> after;
      std::vector<decode::SeqTokens> step;
      std::vector<Row> want;
      for (int b = 0; b < 3; ++b) {
        const auto seed = static_cast<uint64_t>(b + 10);
        const Ids prompt = random_ids(*engine, lengths[b], seed);
        after.push_back(random_ids(*engine, 4 - b, seed + 100));
        want.push_back(run_alone(*engine, prompt, after.back()).back());
        const int slot = engine->cache().create();
        prefill(*engine, slot, prompt);
        step.push_back({slot, {}, true});
      }
      for (size_t b = 0; b < 3; ++b) step[b].tokens = after[b];
      const Tensor logits = engine->extend(step);
      for (int64_t b = 0; b < 3; ++b) CHECK(same(row_of(logits, b), want[static_cast<size_t>(b)]));
    }
  }

  TEST_CASE("f32: a restored state equals the prefilled one") {
    const TemporaryFolder folder;
    for (const Named& kind : kinds()) {
      CAPTURE(kind.name);
      const auto first = make_engine(small_model("llama-3.1"), {.caches = {kind.cache}});
      const auto second = make_engine(small_model("llama-3.1"), {.caches = {kind.cache}});
      const Ids ids = random_ids(*first, 230, 1), after = random_ids(*first, 6, 2);
      const int saved = first->cache().create();
      prefill(*first, saved, ids);
      decode::save_state(folder / "state", *first, saved, ids);
      prefill(*second, second->cache().create(), random_ids(*second, 100, 3));
      const decode::SavedState state =
          decode::open_state(folder / "state", second->files(), second->cache().geometry().dtype);
      const int slot = decode::restore_state(state, *second, 0);
      CHECK(same(extend_each(*second, slot, after), extend_each(*first, saved, after)));
    }
  }

  TEST_CASE("f32: generating twice gives the same text") {
    for (const Named& kind : kinds()) {
      CAPTURE(kind.name);
      const auto engine = make_engine(small_model("llama-3.1"), {.caches = {kind.cache}});
      const decode::Request prompt = request(random_ids(*engine, 200, 4));
      decode::GenerateSpec spec;
      spec.max_tokens = 20;
      const auto once = generate(*engine, {prompt}, spec).ids;
      CHECK(generate(*engine, {prompt}, spec).ids == once);
      CHECK(once[0].size() == 20);
    }
  }

  TEST_CASE("f32: every node of a tree sees the committed text through the lists") {
    const std::vector<int> parent = {-1, 0, 0, 1, 2, -1, 5};
    for (const Named& kind : kinds()) {
      if (kind.name == "topk" || kind.name == "oracle_sampling") continue;  // no trees
      if (kind.name == "retrieval") continue;                               // as above
      CAPTURE(kind.name);
      const auto engine = make_engine(small_model("llama-3.1"), {.caches = {kind.cache}});
      const Ids prompt = random_ids(*engine, 200, 5), nodes = random_ids(*engine, 7, 6);
      const int slot = engine->cache().create();
      prefill(*engine, slot, prompt);
      const kv::SeqRows rows[] = {{slot, 7}};
      const kv::Tree trees[] = {{parent}};
      const kv::Step step = engine->cache().begin({.rows = rows, .trees = trees});
      const kv::KeyUsage before = engine->cache().usage(0);
      engine->model().forward(nodes, step, engine->cache());
      CHECK(engine->cache().usage(0).selected > before.selected);
      std::vector<Row> logits;
      for (int32_t r = 0; r < 7; ++r) logits.push_back(row_of(engine->logits(std::span(&r, 1)), 0));
      for (int node = 0; node < 7; ++node) {
        Ids chain;
        for (int at = node; at >= 0; at = parent[static_cast<size_t>(at)])
          chain.insert(chain.begin(), nodes[static_cast<size_t>(at)]);
        CAPTURE(node);
        CHECK(max_difference(run_alone(*engine, prompt, chain).back(),
                             logits[static_cast<size_t>(node)]) <= 2e-5);
      }
      // The accepted path goes on as if it had been a chain.
      const std::vector<int> path[] = {{0, 2, 4}};
      const int kept[] = {3};
      commit_paths(engine->cache(), step, kept, path);
      const Ids next = random_ids(*engine, 2, 7);
      Ids chain = {nodes[0], nodes[2], nodes[4]};
      chain.insert(chain.end(), next.begin(), next.end());
      CHECK(max_difference(extend_each(*engine, slot, next).back(),
                           run_alone(*engine, prompt, chain).back()) <= 2e-5);
    }
  }

  TEST_CASE("policies over one prompt: each chooses for itself") {
    std::vector<Cache> caches = {Cache{}};
    for (const Named& kind : kinds()) caches.push_back(kind.cache);
    const auto engine = make_engine(small_model("llama-3.1"), {.max_seqs = 9, .caches = caches});
    const Ids prompt = random_ids(*engine, 200, 8), after = random_ids(*engine, 3, 9);
    const int root = engine->cache().create();
    prefill(*engine, root, prompt);
    for (size_t i = 1; i < caches.size(); ++i) {
      CAPTURE(i);
      const auto alone = make_engine(small_model("llama-3.1"), {.caches = {caches[i]}});
      std::vector<Row> want = run_alone(*alone, prompt, after);
      want.erase(want.begin());
      const int fork = engine->cache().fork(root, static_cast<int>(i));
      CHECK(same(extend_each(*engine, fork, after), want));
    }
  }

  TEST_CASE("a reader hears of what was committed under another reading, and of truncation") {
    recipe::Cache quest;
    quest.kind = recipe::CacheKind::quest;
    quest.dense_layers = {};
    quest.sinks = {4};
    quest.recent = {64};
    const auto engine =
        make_engine(small_model("llama-3.1"), {.max_tokens = 2600, .caches = {{}, quest}});
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 2400, 61);
    const int slot = cache.create({0, 1});
    prefill(*engine, slot, std::span(ids).first(40));  // too short for an index
    const auto step = [&](int policy, std::span<const int32_t> tokens) {
      const kv::SeqRows rows[] = {{slot, static_cast<int>(tokens.size()), true}};
      const kv::Step s = cache.begin({.rows = rows, .reading = kv::Reading{policy}});
      engine->model().forward(tokens, s, cache);
      cache.commit(s);
    };
    const auto selected = [&](std::span<const int32_t> tokens) {
      const double before = cache.usage(1).selected;
      step(1, tokens);
      return cache.usage(1).selected - before;
    };
    CHECK(selected(std::span(ids).subspan(40, 1)) == 0);
    for (size_t i = 41; i + 200 <= ids.size(); i += 200) step(0, std::span(ids).subspan(i, 200));
    CHECK(selected(std::span(ids).last(1)) > 0);
    cache.truncate(slot, 50);
    CHECK(selected(std::span(ids).last(1)) == 0);
  }
}
