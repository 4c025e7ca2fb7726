#include <doctest/doctest.h>

#include "base/parallel.h"
#include "engine_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::SeqTokens;

TEST_SUITE("kv/invariance") {
  TEST_CASE("a layer is rotated by its own table") {
    const auto logits = [](std::vector<double> thetas, int rope) {
      decode::ModelFiles files = decode::open_model(small_model("llama-3.1").string(), 0);
      files.config.ropes.clear();
      for (const double theta : thetas) files.config.ropes.push_back({.theta = theta});
      files.config.kinds[0].attention.rope = rope;
      decode::Engine engine(std::move(files), engine_spec({}));
      return run_alone(engine, random_ids(engine, 40, 1), random_ids(engine, 4, 2));
    };
    const std::vector<Row> want = logits({5e5}, 0);
    CHECK(logits({1e4, 5e5}, 1) == want);
    CHECK(logits({1e4, 5e5}, 0) != want);
  }

  TEST_CASE("f32: chunks of a prefill do not show in any logit, of any architecture") {
    for (const char* name : small_models()) {
      CAPTURE(name);
      const auto engine = make_engine(small_model(name));
      const Ids ids = random_ids(*engine, 300, 1), after = random_ids(*engine, 4, 2);
      const std::vector<Row> want = run_alone(*engine, ids, after);
      for (const size_t chunk : {1u, 7u, 64u, 100u}) {
        CAPTURE(chunk);
        CHECK(same(run_alone(*engine, ids, after, chunk), want));
      }
    }
  }

  TEST_CASE("f32: the rows of one forward do not show either (run.prefill_chunk)") {
    const auto whole = make_engine(small_model("llama-3.1"));
    const Ids ids = random_ids(*whole, 400, 3), after = random_ids(*whole, 2, 4);
    const std::vector<Row> want = run_alone(*whole, ids, after);
    for (const int chunk : {5, 63, 200}) {
      const auto engine = make_engine(small_model("llama-3.1"), {.chunk = chunk});
      CHECK(same(run_alone(*engine, ids, after), want));
    }
  }

  TEST_CASE("f32: sequences of a ragged batch, joining and leaving, equal each alone") {
    for (const std::string name :
         {"llama-3.1", "mistral-window", "qwen2-untied-sharded", "qwen3-odd"}) {
      CAPTURE(name);
      const auto engine = make_engine(small_model(name), {.chunk = 96});
      struct Seq {
        Ids prompt, after;
        int joins, slot;
        std::vector<Row> rows;
      };
      std::vector<Seq> seqs;
      for (const auto& [length, n, joins] :
           {std::array{5, 12, 0}, {130, 7, 0}, {70, 9, 0}, {33, 6, 4}, {1, 5, 8}})
        seqs.push_back({random_ids(*engine, length, static_cast<uint64_t>(length)),
                        random_ids(*engine, n, 99),
                        joins,
                        -1,
                        {}});
      for (int step = 0; step < 20; ++step) {
        std::vector<SeqTokens> prompts, rows;
        std::vector<Seq*> fresh, active;
        for (Seq& s : seqs) {
          if (s.slot >= 0 && s.rows.size() <= s.after.size()) {
            active.push_back(&s);
            rows.push_back({s.slot, std::span(s.after).subspan(s.rows.size() - 1, 1), true});
          } else if (s.slot < 0 && step >= s.joins && fresh.size() + active.size() < 3) {
            s.slot = engine->cache().create();
            fresh.push_back(&s);
            prompts.push_back({s.slot, s.prompt, true});
          }
        }
        engine->prefill(prompts, [&](std::span<const size_t> which, const Tensor& logits) {
          for (size_t i = 0; i < which.size(); ++i)
            fresh[which[i]]->rows.push_back(row_of(logits, static_cast<int64_t>(i)));
        });
        if (rows.empty()) continue;
        const Tensor logits = engine->extend(rows);
        for (size_t i = 0; i < active.size(); ++i) {
          active[i]->rows.push_back(row_of(logits, static_cast<int64_t>(i)));
          if (active[i]->rows.size() == active[i]->after.size() + 1)
            engine->cache().release(active[i]->slot);
        }
      }
      for (const Seq& s : seqs) {
        CAPTURE(s.prompt.size());
        CHECK(same(s.rows, run_alone(*engine, s.prompt, s.after)));
      }
    }
  }

  TEST_CASE("f32: the number of threads does not show, keys of many splits included") {
    const int threads = max_threads();
    std::vector<Row> want;
    for (const int n : {1, 2, 3, 4}) {
      CAPTURE(n);
      set_threads(n);
      const auto engine = make_engine(tiny_model("tiny-2m"), {.max_seqs = 2, .max_tokens = 2304});
      const Ids ids = random_ids(*engine, 2200, 5), after = random_ids(*engine, 3, 6);
      const std::vector<Row> rows = run_alone(*engine, ids, after);
      if (want.empty()) want = rows;
      CHECK(same(rows, want));
    }
    set_threads(threads);
  }

  TEST_CASE("f32: forks of a prefix equal plain runs, however their steps interleave") {
    for (const int prefix : {64, 100}) {
      CAPTURE(prefix);
      const auto engine = make_engine(small_model("llama-3.1"));
      kv::Cache& cache = engine->cache();
      const int pages = cache.store().free_pages();
      const Ids ids = random_ids(*engine, prefix, 7);
      const int root = cache.create();
      prefill(*engine, root, ids);
      const int a = cache.fork(root, 0), b = cache.fork(root, 0);
      const Ids next_a = random_ids(*engine, 50, 8), next_b = random_ids(*engine, 50, 9);
      std::vector<Row> rows_a, rows_b;
      for (size_t i = 0; i < next_a.size(); ++i) {
        const SeqTokens step[] = {{a, std::span(next_a).subspan(i, 1), true},
                                  {b, std::span(next_b).subspan(i, 1), true}};
        const Tensor logits = engine->extend(step);
        rows_a.push_back(row_of(logits, 0));
        rows_b.push_back(row_of(logits, 1));
      }
      const std::vector<Row> rows_root = extend_each(*engine, root, next_a);
      for (const int slot : {a, b, root}) cache.release(slot);
      CHECK(cache.store().free_pages() == pages);

      std::vector<Row> want_a = run_alone(*engine, ids, next_a),
                       want_b = run_alone(*engine, ids, next_b);
      want_a.erase(want_a.begin());
      want_b.erase(want_b.begin());
      CHECK(same(rows_a, want_a));
      CHECK(same(rows_b, want_b));
      CHECK(same(rows_root, want_a));
    }
  }

  TEST_CASE("f32: a prompt that continues a forked prefix equals the prompt as a whole") {
    const auto engine = make_engine(small_model("qwen2-tied"));
    const Ids ids = random_ids(*engine, 220, 10);
    const int root = engine->cache().create();
    prefill(*engine, root, std::span(ids).first(130));
    const int child = engine->cache().fork(root, 0);
    CHECK(
        same(prefill(*engine, child, std::span(ids).subspan(130)), run_alone(*engine, ids, {})[0]));
  }

  TEST_CASE("a sliding window gives pages back and keeps those that rows still see") {
    const auto engine = make_engine(small_model("mistral-window"), {.max_seqs = 1});
    const int window = engine->config().layer(0).attention.window;
    REQUIRE(window == 32);
    kv::Cache& cache = engine->cache();
    const int pages = cache.store().free_pages();
    const Ids ids = random_ids(*engine, 450, 11);
    const int slot = cache.create();
    for (size_t i = 0; i < ids.size(); i += 30) {
      const int end = static_cast<int>(std::min(i + 30, ids.size()));
      extend(*engine, slot, std::span(ids).subspan(i, static_cast<size_t>(end) - i));
      CHECK(pages - cache.store().free_pages() <= 2);
      const auto live = live_ranges(cache, slot);
      REQUIRE(live.size() == 1);
      CHECK(live[0].first <= std::max(0, end - window + 1));
      CHECK(live[0].second == end);
    }
    cache.release(slot);
    CHECK(cache.store().free_pages() == pages);
  }
}
