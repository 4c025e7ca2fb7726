#include <doctest/doctest.h>

#include "engine_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

/// Runs rows that stay tentative: forward without commit.
kv::Step run_tentative(Engine& engine, int slot, const Ids& ids) {
  const kv::SeqRows rows[] = {{slot, static_cast<int>(ids.size()), true}};
  kv::Step step = engine.cache().begin({.rows = rows});
  engine.model().forward(ids, step, engine.cache());
  return step;
}

}  // namespace

TEST_SUITE("kv/rollback") {
  TEST_CASE("f32: rows that are not kept leave no trace") {
    const std::vector<recipe::Cache> caches = {{}, streaming(4, 64)};
    for (const std::string name : {"llama-3.1", "mistral-window", "qwen2-layer-types"})
      for (const int policy : {0, 1})
        for (const int length : {100, 128, 250}) {
          CAPTURE(name);
          CAPTURE(policy);
          CAPTURE(length);
          const auto engine = make_engine(small_model(name), {.caches = caches});
          kv::Cache& cache = engine->cache();
          const Ids ids = random_ids(*engine, length, 1), wrong = random_ids(*engine, 90, 2),
                    after = random_ids(*engine, 80, 3);
          const int plain = cache.create(policy), slot = cache.create(policy);
          prefill(*engine, plain, ids);
          prefill(*engine, slot, ids);
          const std::string bytes = committed_bytes(cache, slot);
          const int none[] = {0};
          for (int round = 0; round < 2; ++round) {
            cache.commit(run_tentative(*engine, slot, wrong), none);
            CHECK(cache.length(slot) == length);
            CHECK(committed_bytes(cache, slot) == bytes);
          }
          run_tentative(*engine, slot, wrong);  // not even told to commit
          CHECK(committed_bytes(cache, slot) == bytes);
          CHECK(same(extend_each(*engine, slot, after), extend_each(*engine, plain, after)));
          CHECK(committed_bytes(cache, slot) == committed_bytes(cache, plain));
        }
  }

  TEST_CASE("tokens taken back run again, and a page that a fork shares is left alone") {
    const auto engine = make_engine(small_model("llama-3.1"));
    kv::Cache& cache = engine->cache();
    for (const int length : {64, 65, 66, 100, 129}) {
      CAPTURE(length);
      const Ids ids = random_ids(*engine, length, 4), other = random_ids(*engine, 2, 5),
                after = random_ids(*engine, 5, 6);
      Ids changed(ids.begin(), ids.end() - 2);
      changed.insert(changed.end(), other.begin(), other.end());
      const int parent = cache.create(), plain = cache.create();
      prefill(*engine, parent, ids);
      prefill(*engine, plain, changed);
      const std::string bytes = committed_bytes(cache, parent);
      const int slot = cache.fork(parent, 0);
      cache.uncommit(slot, length - 2);
      CHECK(cache.length(slot) == length - 2);
      (void)extend_each(*engine, slot, other);
      CHECK(committed_bytes(cache, slot) == committed_bytes(cache, plain));
      CHECK(committed_bytes(cache, parent) == bytes);
      CHECK(same(extend_each(*engine, slot, after), extend_each(*engine, plain, after)));
      for (const int used : {slot, plain, parent}) cache.release(used);
    }
  }

  TEST_CASE("f32: the kept beginning of a step equals a step of just those rows") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {streaming(4, 32)}});
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 150, 4), draft = random_ids(*engine, 70, 5),
              after = random_ids(*engine, 5, 6);
    for (const int kept : {1, 3, 69, 70}) {
      CAPTURE(kept);
      const int plain = cache.create(), slot = cache.create();
      prefill(*engine, plain, ids);
      prefill(*engine, slot, ids);
      const int keep[] = {kept};
      cache.commit(run_tentative(*engine, slot, draft), keep);
      CHECK(cache.length(slot) == 150 + kept);
      extend(*engine, plain, std::span(draft).first(static_cast<size_t>(kept)));
      CHECK(same(extend_each(*engine, slot, after), extend_each(*engine, plain, after)));
      cache.release(plain);
      cache.release(slot);
    }
  }

  TEST_CASE("each sequence of a batch keeps its own number of rows") {
    const auto engine = make_engine(small_model("qwen2-tied"));
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 90, 7), draft = random_ids(*engine, 8, 8),
              after = random_ids(*engine, 3, 9);
    const int a = cache.create(), b = cache.create();
    prefill(*engine, a, ids);
    prefill(*engine, b, std::span(ids).first(40));
    const kv::SeqRows rows[] = {{a, 5, true}, {b, 3, true}};
    const kv::Step step = cache.begin({.rows = rows});
    engine->model().forward(draft, step, cache);
    const int kept[] = {0, 2};
    cache.commit(step, kept);

    const int plain_a = cache.create(), plain_b = cache.create();
    prefill(*engine, plain_a, ids);
    Ids text_b(ids.begin(), ids.begin() + 40);
    text_b.insert(text_b.end(), draft.begin() + 5, draft.begin() + 7);
    prefill(*engine, plain_b, text_b);
    CHECK(same(extend_each(*engine, a, after), extend_each(*engine, plain_a, after)));
    CHECK(same(extend_each(*engine, b, after), extend_each(*engine, plain_b, after)));
  }

  TEST_CASE("f32: a truncated sequence goes on as if the rest had never been") {
    const auto engine = make_engine(small_model("llama-3.2-tied"));
    kv::Cache& cache = engine->cache();
    const int pages = cache.store().free_pages();
    const Ids ids = random_ids(*engine, 150, 10), after = random_ids(*engine, 40, 11);
    for (const int n : {1, 63, 64, 65, 128, 149}) {
      CAPTURE(n);
      const int slot = cache.create(), plain = cache.create();
      prefill(*engine, slot, ids);
      extend_each(*engine, slot, std::span(after).first(5));
      cache.truncate(slot, n);
      CHECK(cache.length(slot) == n);
      prefill(*engine, plain, std::span(ids).first(static_cast<size_t>(n)));
      CHECK(same(extend_each(*engine, slot, after), extend_each(*engine, plain, after)));
      cache.release(slot);
      cache.release(plain);
    }
    CHECK(cache.store().free_pages() == pages);
  }

  TEST_CASE("f32: the last token can run again under every policy, at every length") {
    for (const std::string name : {"llama-3.1", "mistral-window"})
      for (const recipe::Cache& policy : {recipe::Cache{}, streaming(4, 20), streaming(0, 1)}) {
        CAPTURE(name);
        CAPTURE(static_cast<int>(policy.recent));
        const auto engine = make_engine(small_model(name), {.caches = {policy}});
        kv::Cache& cache = engine->cache();
        const Ids ids = random_ids(*engine, 208, 12);
        const int slot = cache.create();
        prefill(*engine, slot, std::span(ids).first(140));
        for (size_t n = 140; n < ids.size(); ++n) {
          CAPTURE(n);
          const auto last = std::span(ids).subspan(n, 1);
          const Row want = extend(*engine, slot, last);
          REQUIRE_NOTHROW(cache.truncate(slot, static_cast<int>(n)));
          CHECK(same(extend(*engine, slot, last), want));
        }
      }
  }

  TEST_CASE(
      "going back to what a policy gave away is an error of kind input, and changes nothing") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {streaming(4, 64)}});
    kv::Cache& cache = engine->cache();
    const int slot = cache.create();
    prefill(*engine, slot, random_ids(*engine, 400, 13));
    const std::string bytes = committed_bytes(cache, slot);
    try {
      cache.truncate(slot, 200);
      FAIL("nothing thrown");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::input);
      CHECK(std::string(e.what()).find("streaming") != std::string::npos);
    }
    CHECK(cache.length(slot) == 400);
    CHECK(committed_bytes(cache, slot) == bytes);
  }
}
