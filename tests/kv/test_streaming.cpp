#include <doctest/doctest.h>

#include "engine_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using decode::SeqTokens;

TEST_SUITE("kv/streaming") {
  TEST_CASE("f32: while sinks + recent cover the text, streaming is full attention bit for bit") {
    for (const std::string name : {"llama-3.1", "mistral-window", "qwen2-tied", "qwen3-tied"}) {
      CAPTURE(name);
      // Sinks stay in sight beyond a model's own window: there only a cache without them is full.
      const int sinks = name == "mistral-window" ? 0 : 10;
      const auto engine = make_engine(
          small_model(name), {.caches = {{}, streaming(sinks, 210 - sinks), streaming(0, 210)}});
      const Ids ids = random_ids(*engine, 190, 1), after = random_ids(*engine, 20, 2);
      std::vector<std::vector<Row>> rows;
      for (const int policy : {0, 1, 2}) {
        const int slot = engine->cache().create(policy);
        rows.push_back({prefill(*engine, slot, ids)});
        for (Row& row : extend_each(*engine, slot, after)) rows.back().push_back(std::move(row));
      }
      CHECK(same(rows[1], rows[0]));
      CHECK(same(rows[2], rows[0]));
    }
  }

  TEST_CASE("once text is cut, logits part from full attention; the prompt itself is dense") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {{}, streaming(4, 32)}});
    const Ids ids = random_ids(*engine, 300, 3), next = random_ids(*engine, 1, 4);
    const int full = engine->cache().create(0), cut = engine->cache().create(1);
    CHECK(same(prefill(*engine, full, ids), prefill(*engine, cut, ids)));
    CHECK_FALSE(same(extend(*engine, full, next), extend(*engine, cut, next)));
  }

  TEST_CASE("f32: rows of an extend step see what they would see one at a time") {
    for (const std::string name : {"llama-3.1", "mistral-window", "qwen3-tied"})
      for (const recipe::Cache& c : {streaming(4, 64), streaming(0, 1), streaming(70, 3),
                                     streaming(4, 64, true), streaming(1, 1, true)}) {
        CAPTURE(name);
        CAPTURE(static_cast<int>(c.sinks));
        CAPTURE(static_cast<int>(c.recent));
        const auto engine = make_engine(small_model(name), {.caches = {c}});
        kv::Cache& cache = engine->cache();
        const Ids ids = random_ids(*engine, 200, 5), after = random_ids(*engine, 150, 6);
        const int one = cache.create();
        prefill(*engine, one, ids);
        const Row want = extend_each(*engine, one, after).back();
        for (const size_t chunk : {3u, 64u, 150u}) {
          CAPTURE(chunk);
          const int slot = cache.create();
          prefill(*engine, slot, ids);
          Row last;
          for (size_t i = 0; i < after.size(); i += chunk)
            last = extend(*engine, slot,
                          std::span(after).subspan(i, std::min(chunk, after.size() - i)));
          CHECK(same(last, want));
          CHECK(live_ranges(cache, slot) == live_ranges(cache, one));
          cache.release(slot);
        }
      }
  }

  TEST_CASE("f32: a prompt's chunks do not show, whatever they would cut") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {streaming(4, 16)}});
    const Ids ids = random_ids(*engine, 300, 7), next = random_ids(*engine, 1, 8);
    Row first;
    for (const size_t chunk : {0u, 1u, 64u, 100u}) {
      CAPTURE(chunk);
      const int slot = engine->cache().create();
      Row row = prefill(*engine, slot, ids, chunk);
      const Row after = extend(*engine, slot, next);
      row.insert(row.end(), after.begin(), after.end());
      if (first.empty()) first = row;
      CHECK(same(row, first));
      engine->cache().release(slot);
    }
  }

  TEST_CASE("pages outside sinks and recent are given back, in decode and after the prompt") {
    const auto engine =
        make_engine(small_model("llama-3.1"),
                    {.max_seqs = 1, .max_tokens = 2048, .caches = {streaming(4, 100)}});
    kv::Cache& cache = engine->cache();
    const int pages = cache.store().free_pages();
    const int slot = cache.create();
    prefill(*engine, slot, random_ids(*engine, 500, 9));
    // The sinks' page, and at most ceil((100 + 62) / 64) that hold the recent tokens and one more.
    CHECK(pages - cache.store().free_pages() <= 4);
    for (int i = 0; i < 200; ++i) {
      extend(*engine, slot, random_ids(*engine, 3, static_cast<uint64_t>(i)));
      CHECK(pages - cache.store().free_pages() <= 4);
      const auto live = live_ranges(cache, slot);
      REQUIRE(live.size() == 2);
      CHECK(live[0] == std::pair{0, kPageTokens});
      CHECK(live[1].first <= cache.length(slot) - 100 + 1);
    }
    cache.release(slot);
    CHECK(cache.store().free_pages() == pages);
  }

  TEST_CASE("f32: a fresh prompt is dense beside the continuation of a cut text, as it is alone") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {streaming(4, 16)}});
    kv::Cache& cache = engine->cache();
    const Ids text = random_ids(*engine, 300, 10), more = random_ids(*engine, 30, 11),
              fresh = random_ids(*engine, 200, 12);
    const int prefix = cache.create();
    prefill(*engine, prefix, text);
    std::vector<Row> want, got(2);
    int slot = cache.fork(prefix, 0);
    want.push_back(prefill(*engine, slot, more));
    cache.release(slot);
    slot = cache.create();
    want.push_back(prefill(*engine, slot, fresh));
    cache.release(slot);
    for (const bool cut_first : {true, false}) {
      CAPTURE(cut_first);
      const int a = cache.fork(prefix, 0), b = cache.create();
      std::vector<SeqTokens> both = {{a, more, true}, {b, fresh, true}};
      if (!cut_first) std::swap(both[0], both[1]);
      engine->prefill(both, [&](std::span<const size_t> which, const Tensor& logits) {
        for (size_t i = 0; i < which.size(); ++i)
          got[cut_first ? which[i] : 1 - which[i]] = row_of(logits, static_cast<int64_t>(i));
      });
      CHECK(same(got, want));
      cache.release(a);
      cache.release(b);
    }
  }

  TEST_CASE("a fork under a policy that needs more than is left is an error and costs nothing") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {{}, streaming(4, 16)}});
    kv::Cache& cache = engine->cache();
    const int cut = cache.create(1);
    prefill(*engine, cut, random_ids(*engine, 300, 15));
    const int pages = cache.store().free_pages();
    for (int i = 0; i < 5; ++i) {
      try {
        cache.fork(cut, 0);
        FAIL("nothing thrown");
      } catch (const Error& e) {
        CHECK(std::string(e.what()) ==
              "kv cache: the full policy needs token 64, which the streaming policy evicted");
        CHECK(e.kind() == ErrorKind::input);
      }
    }
    CHECK(cache.store().free_pages() == pages);
    CHECK(cache.fork(cut, 1) != cut);
  }

  TEST_CASE("several policies share one prefix; each fork is cut for itself") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {{}, streaming(4, 16)}});
    kv::Cache& cache = engine->cache();
    const int pages = cache.store().free_pages();
    const Ids ids = random_ids(*engine, 300, 13), after = random_ids(*engine, 10, 14);
    const int root = cache.create(0);
    prefill(*engine, root, ids);
    const int cut = cache.fork(root, 1), whole = cache.fork(root, 0);
    const std::vector<Row> cut_rows = extend_each(*engine, cut, after);
    const std::vector<Row> whole_rows = extend_each(*engine, whole, after);
    CHECK(live_ranges(cache, cut).size() == 2);
    CHECK(live_ranges(cache, root).size() == 1);
    const int alone = cache.create(1);
    prefill(*engine, alone, ids);
    CHECK(same(extend_each(*engine, alone, after), cut_rows));
    CHECK(same(extend_each(*engine, root, after), whole_rows));
    for (const int slot : {root, cut, whole, alone}) cache.release(slot);
    CHECK(cache.store().free_pages() == pages);
  }

  TEST_CASE("f32: a sequence of two readers keeps what either needs, and reads as each alone") {
    const auto engine =
        make_engine(small_model("llama-3.1"), {.caches = {{}, streaming(4, 16), streaming(2, 90)}});
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 300, 17), after = random_ids(*engine, 12, 18);
    std::vector<Row> want[3];
    for (const int policy : {0, 1, 2}) {
      const int slot = cache.create(policy);
      prefill(*engine, slot, ids);
      want[policy] = extend_each(*engine, slot, std::span(after).first(1));
      cache.release(slot);
    }
    for (const kv::Readers& readers : {kv::Readers{0, 1, 2}, kv::Readers{1, 2}}) {
      const int slot = cache.create(readers);
      prefill(*engine, slot, ids);
      for (int policy = 0; policy < 3; ++policy) {
        if (!readers.has(policy)) continue;
        CAPTURE(policy);
        // A draft's rows stay tentative; the next reading writes over them.
        const kv::SeqRows rows[] = {{slot, 1, true}};
        const kv::Step step = cache.begin({.rows = rows, .reading = kv::Reading{policy}});
        engine->model().forward(std::span(after).first(1), step, cache);
        const int32_t row = 0;
        CHECK(
            same(row_of(engine->on_host(engine->logits(std::span(&row, 1))), 0), want[policy][0]));
      }
      // All commit by the last reader: pages go that none needs, and no others.
      for (const int32_t id : after) {
        const kv::SeqRows rows[] = {{slot, 1, true}};
        const kv::Step step = cache.begin({.rows = rows, .reading = kv::Reading{1}});
        engine->model().forward(std::span(&id, 1), step, cache);
        cache.commit(step);
      }
      const auto live = live_ranges(cache, slot);
      if (readers.has(0))
        CHECK(live == std::vector<std::pair<int, int>>{{0, 312}});
      else  // sinks of the one, recent tokens of the other
        CHECK(live == std::vector<std::pair<int, int>>{{0, 64}, {192, 312}});
      cache.release(slot);
    }
  }

  TEST_CASE("more policies than a sequence can have readers are refused when memory is planned") {
    const std::vector<recipe::Cache> many(65, recipe::Cache{});
    const auto plan = [&] { return make_engine(small_model("llama-3.1"), {.caches = many}); };
    CHECK_THROWS_WITH_AS(plan(), "cache: found 65 policies over one prompt, expected at most 64",
                         Error);
  }
}
