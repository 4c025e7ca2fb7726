// Chunks that the last query chose, read where they are: a GPU's engine beside the CPU's.
#include <doctest/doctest.h>

#include "decode/precision_runs.h"
#include "gpu/engine_pair.h"
#include "kv/tree_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

struct Case {
  std::filesystem::path model;
  recipe::Cache cache;
};

recipe::Cache with(recipe::Cache c, recipe::ScoreGroup group, recipe::ChoosingQuery query,
                   int recent, int every) {
  c.retrieval.group = group;
  c.retrieval.query = query;
  c.retrieval.force_recent = {recent};
  c.retrieval.rebuild = {.tokens = every};
  return c;
}

/// Chunks of several sizes, models of several head sizes and groups.
std::vector<Case> cases() {
  using recipe::ChoosingQuery;
  using recipe::ScoreGroup;
  return {{tiny_model("tiny-16m"), retrieval(96, 8)},
          {tiny_model("tiny-16m"),
           with(retrieval(96, 4), ScoreGroup::max, ChoosingQuery::window, 10, 12)},
          {tiny_model("tiny-2m"), retrieval(40, 1)},
          {small_model("llama-3.1"),
           with(retrieval(64, 16), ScoreGroup::max, ChoosingQuery::last, 0, 7)},
          {small_model("llama-odd"),
           with(retrieval(130, 64), ScoreGroup::sum, ChoosingQuery::last, 2, 0)},
          {small_model("mistral-window"), retrieval(48, 2)},
          {small_model("qwen3-odd"),
           with(retrieval(100, 8), ScoreGroup::sum, ChoosingQuery::window, 0, 0)}};
}

}  // namespace

TEST_SUITE("gpu/decode/retrieval") {
  TEST_CASE("f32: prompts of any length and what follows them: logits equal the CPU's") {
    double worst = 0;
    for (const Case& c : cases()) {
      const EnginePair on = make_pair_of(c.model, {.chunk = 128, .caches = {c.cache}});
      for (const int length : {1, 40, 64, 200, 301}) {
        CAPTURE(c.model.string());
        CAPTURE(c.cache.retrieval.chunk);
        CAPTURE(length);
        const Ids ids = random_ids(*on.cpu, length, 1), after = random_ids(*on.cpu, 80, 2);
        std::vector<Row> rows[2];
        for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
          std::vector<Row>& logits = rows[engine == on.gpu.get() ? 1 : 0];
          const int slot = engine->cache().create();
          logits = {prefill(*engine, slot, ids)};
          for (Row& row : extend_each(*engine, slot, std::span(after).first(70)))
            logits.push_back(std::move(row));
          logits.push_back(extend(*engine, slot, std::span(after).subspan(70, 7)));
          logits.push_back(prefill(*engine, slot, std::span(after).subspan(77, 2)));
          logits.push_back(extend(*engine, slot, std::span(after).subspan(79, 1)));
          engine->cache().release(slot);
        }
        const double difference = max_difference(rows[1], rows[0]);
        CHECK(difference <= kF32Tolerance);
        worst = worse(worst, difference);
      }
    }
    MESSAGE("largest |GPU - CPU| " << worst);
  }

  TEST_CASE("f32: rows of trees equal the CPU's") {
    for (const Case& c : cases()) {
      CAPTURE(c.model.string());
      const EnginePair on =
          make_pair_of(c.model, {.chunk = 256, .caches = {c.cache}, .logit_rows = 256});
      const Ids ids = random_ids(*on.cpu, 200, 25);
      const LevelTree left = by_levels(small_tree(*on.cpu)),
                      right = by_levels(random_tree(*on.cpu, 90));
      std::vector<Row> rows[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        const int a = engine->cache().create(), b = engine->cache().create();
        prefill(*engine, a, ids);
        prefill(*engine, b, std::span(ids).first(30));
        verify_levels(*engine, a, left, b, right, rows[engine == on.gpu.get() ? 1 : 0]);
      }
      CHECK(max_difference(rows[1], rows[0]) <= kF32Tolerance);
    }
  }

  TEST_CASE(
      "f32: chosen chunks through forks, new choices, cuts and ends of others: as on the CPU") {
    for (const int every : {0, 8}) {
      CAPTURE(every);
      recipe::Cache cache = retrieval(96, 8);
      cache.retrieval.rebuild = {.tokens = every};
      const EnginePair on = make_pair_of(tiny_model("tiny-16m"),
                                         {.max_seqs = 3, .max_tokens = 1024, .caches = {cache}});
      const Ids text = real_text(1000);
      std::vector<Row> rows[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        std::vector<Row>& logits = rows[engine == on.gpu.get() ? 1 : 0];
        kv::Cache& kv = engine->cache();
        const auto go_on = [&](int slot, size_t from, size_t n) {
          for (Row& row : extend_each(*engine, slot, part_of(text, from, n)))
            logits.push_back(std::move(row));
        };
        const int a = kv.create();
        prefill(*engine, a, part_of(text, 0, 600));  // more than a block of means
        const int b = kv.fork(a, 0);
        go_on(b, 600, 5);
        prefill(*engine, b, part_of(text, 610, 6));
        go_on(a, 600, 20);
        go_on(b, 620, 20);
        const int c = kv.fork(b, 0);
        kv.release(b);
        const int d = kv.create();
        prefill(*engine, d, part_of(text, 700, 200));
        go_on(c, 640, 20);
        go_on(d, 900, 20);
        kv.truncate(a, 610);
        go_on(a, 800, 10);
        kv.truncate(a, 150);  // no queries are left
        go_on(a, 800, 10);
        prefill(*engine, a, part_of(text, 810, 30));
        go_on(a, 840, 10);
        go_on(c, 660, 10);
        kv.truncate(d, 60);  // within the budget
        go_on(d, 920, 5);
        for (const int slot : {a, c, d}) kv.release(slot);
      }
      CHECK(rows[0].size() == 130);
      CHECK(max_difference(rows[1], rows[0]) <= kF32Tolerance);
    }
  }
}
