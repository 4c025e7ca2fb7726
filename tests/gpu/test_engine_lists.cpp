// Policies whose rows and heads choose keys for themselves: a GPU against the CPU.
#include <doctest/doctest.h>

#include <cmath>

#include "decode/precision_runs.h"
#include "gpu/engine_pair.h"
#include "kv/fill_random.h"
#include "kv/tree_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using recipe::CacheKind;

namespace {

/// Small budgets, so that everything that is chosen is a real choice.
recipe::Cache few(CacheKind kind) {
  recipe::Cache c;
  c.kind = kind;
  c.recent = {16};
  c.dense_layers = {};
  c.topk.ratio = {0.2};
  c.quest = {.page = 8, .ratio = {0.3}};
  c.lsh = {.bits = 4, .tables = 40};
  return c;
}
/// Budgets of everything.
recipe::Cache all_of(CacheKind kind) {
  recipe::Cache c = few(kind);
  c.topk.ratio = c.quest.ratio = {1.0};
  c.lsh = {.bits = 1, .tables = 96, .min_hits = 1, .u_floor = 0};
  return c;
}

constexpr CacheKind kKinds[] = {CacheKind::topk, CacheKind::oracle_sampling, CacheKind::quest,
                                CacheKind::lsh};

std::vector<std::filesystem::path> models() {
  return {tiny_model("tiny-16m"), small_model("llama-3.1"), small_model("llama-odd"),
          small_model("qwen3-tied"), small_model("mistral-window")};
}

/// Logits are the CPU's where both chose the same keys; where two scores are nearly equal at the
/// end of a list, rounding decides, and a row differs by one key of little weight. A draw of
/// oracle_sampling may fall between the ends of two keys' shares, which rounding moves, and all
/// rows after it read another text: some of its texts stay the CPU's (its draws from equal scores
/// are the CPU's in test_draw_keys.cpp).
void check_near(CacheKind kind, const std::vector<Row>& got, const std::vector<Row>& want) {
  REQUIRE(got.size() == want.size());
  size_t same = 0;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = max_difference(got[i], want[i]);
    same += difference <= kF32Tolerance ? 1 : 0;
    worst = worse(worst, difference);
  }
  MESSAGE(same << " of " << got.size() << " rows are the CPU's, largest difference " << worst);
  if (kind == CacheKind::oracle_sampling) {
    CHECK(same * 2 >= got.size());
    CHECK(worst < 10);
    return;
  }
  CHECK(same * 10 >= got.size() * 9);
  CHECK(worst < 1);
}

/// Steps of one row, of few and of many after a text.
void follow(Engine& engine, int slot, const Ids& after, std::vector<Row>& rows) {
  for (Row& row : extend_each(engine, slot, part_of(after, 0, 20))) rows.push_back(std::move(row));
  for (const auto& [begin, n] : {std::pair<size_t, size_t>{20, 7}, {27, 40}, {67, 1}})
    rows.push_back(extend(engine, slot, part_of(after, begin, n)));
}

}  // namespace

TEST_SUITE("gpu/decode/lists") {
  TEST_CASE("f32: prompts, steps and parts of questions equal the CPU's") {
    for (const CacheKind kind : kKinds)
      for (const std::filesystem::path& model : models()) {
        CAPTURE(recipe::yaml_text(kind));
        CAPTURE(model.string());
        const EnginePair on = make_pair_of(model, {.chunk = 128, .caches = {few(kind)}});
        std::vector<Row> rows[2];
        for (const int length : {1, 17, 64, 200, 300}) {
          const Ids ids = random_ids(*on.cpu, length, 1), after = random_ids(*on.cpu, 68, 2);
          for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
            std::vector<Row>& of = rows[engine == on.gpu.get() ? 1 : 0];
            const int slot = engine->cache().create();
            of.push_back(prefill(*engine, slot, ids));
            follow(*engine, slot, after, of);
            engine->cache().release(slot);
          }
        }
        check_near(kind, rows[1], rows[0]);
      }
  }

  TEST_CASE("f32: a budget of everything gives what all keys give") {
    for (const CacheKind kind : {CacheKind::topk, CacheKind::quest, CacheKind::lsh})
      for (const std::filesystem::path& model : models()) {
        CAPTURE(recipe::yaml_text(kind));
        CAPTURE(model.string());
        std::vector<Row> rows[2];
        for (const recipe::Cache& cache : {recipe::Cache{}, all_of(kind)}) {
          const auto engine = make_engine(model, {.caches = {cache}, .device = kGpu});
          const int slot = engine->cache().create();
          std::vector<Row>& of = rows[cache.kind == kind ? 1 : 0];
          of = {prefill(*engine, slot, random_ids(*engine, 250, 1))};
          follow(*engine, slot, random_ids(*engine, 68, 2), of);
        }
        CHECK(max_difference(rows[1], rows[0]) <= kF32Tolerance);
      }
  }

  TEST_CASE("f32: batches, forks, texts cut back and slots used again: as on the CPU") {
    for (const CacheKind kind : kKinds)
      for (const bool dense : {false, true}) {
        CAPTURE(recipe::yaml_text(kind));
        recipe::Cache cache = few(kind);
        if (dense) cache.dense_layers = {0, 2};
        const EnginePair on =
            make_pair_of(tiny_model("tiny-16m"), {.max_seqs = 4, .caches = {cache}});
        const Ids text = real_text(700);
        std::vector<Row> rows[2];
        for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
          std::vector<Row>& of = rows[engine == on.gpu.get() ? 1 : 0];
          kv::Cache& kv = engine->cache();
          // A token of each.
          const auto go_on = [&](const std::vector<int>& slots, size_t from, size_t n) {
            for (size_t i = 0; i < n; ++i) {
              Batch batch{.slots = slots, .tokens = {}};
              for (size_t b = 0; b < slots.size(); ++b)
                batch.tokens.push_back(part_of(text, from + i + b, 1));
              for (Row& row : extend_all(*engine, batch)) of.push_back(std::move(row));
            }
          };
          const int a = kv.create(), b = kv.create();
          prefill(*engine, a, part_of(text, 0, 300));
          prefill(*engine, b, part_of(text, 300, 40));
          go_on({a, b}, 400, 5);
          const int c = kv.fork(a, 0), d = kv.create();  // reads the same blocks
          prefill(*engine, d, part_of(text, 100, 3));    // read in full
          go_on({d, c, a}, 410, 5);
          prefill(*engine, c, part_of(text, 420, 60));  // copies a block
          go_on({b, c, a, d}, 490, 5);
          kv.release(a);
          go_on({c, b}, 500, 5);
          const int e = kv.create();
          prefill(*engine, e, part_of(text, 200, 100));
          go_on({c, e, d}, 510, 5);
          kv.truncate(c, 150);
          go_on({c, e}, 520, 5);
          kv.truncate(c, 10);
          go_on({b, c}, 530, 5);
        }
        CHECK(rows[0].size() == 5 * (2 + 3 + 4 + 2 + 3 + 2 + 2));
        check_near(kind, rows[1], rows[0]);
      }
  }

  // Not of oracle_sampling, whose draws the last bits of a score may move.
  TEST_CASE("f32: texts of recorded steps are those of single ones, and the CPU's") {
    for (const CacheKind kind : {CacheKind::topk, CacheKind::quest, CacheKind::lsh}) {
      CAPTURE(recipe::yaml_text(kind));
      const EnginePair on =
          make_pair_of(tiny_model("tiny-16m"), {.max_seqs = 4, .caches = {few(kind)}});
      const Ids text = real_text(330);
      std::vector<decode::Request> requests;
      for (const size_t n : {20u, 100u, 250u, 330u})
        requests.push_back(request(part_of(text, 0, n)));
      decode::GenerateSpec spec;
      spec.max_tokens = 40;
      const std::vector<Ids> cpu = generate(*on.cpu, requests, spec).ids,
                             gpu = generate(*on.gpu, requests, spec).ids;
      size_t same_texts = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        CAPTURE(i);
        const int slot = on.gpu->cache().create();
        Row row = prefill(*on.gpu, slot, requests[i].tokens);
        Ids single;
        for (size_t t = 0; t < gpu[i].size(); ++t) {
          single.push_back(argmax(row));
          row = extend(*on.gpu, slot, part_of(single, t, 1));
        }
        on.gpu->cache().release(slot);
        CHECK(single == gpu[i]);
        same_texts += cpu[i] == gpu[i] ? 1 : 0;
      }
      MESSAGE(same_texts << " of " << requests.size() << " texts are the CPU's");
      CHECK(same_texts + 1 >= requests.size());
    }
  }

  TEST_CASE("f32: rows of trees equal the CPU's, and their committed paths go on alike") {
    for (const CacheKind kind : {CacheKind::quest, CacheKind::lsh}) {
      CAPTURE(recipe::yaml_text(kind));
      const EnginePair on = make_pair_of(tiny_model("tiny-16m"),
                                         {.chunk = 256, .caches = {few(kind)}, .logit_rows = 256});
      const Ids ids = real_text(200), after = random_ids(*on.cpu, 68, 26);
      const LevelTree left = by_levels(small_tree(*on.cpu)),
                      right = by_levels(random_tree(*on.cpu, 90));
      std::vector<Row> rows[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        std::vector<Row>& of = rows[engine == on.gpu.get() ? 1 : 0];
        kv::Cache& cache = engine->cache();
        const int a = cache.create(), b = cache.create();
        prefill(*engine, a, ids);
        prefill(*engine, b, part_of(ids, 0, 130));
        const kv::Step step = verify(*engine, a, left, b, right, of);
        cache.commit(step, std::vector<int>{1, 1});
        for (const int slot : {a, b}) follow(*engine, slot, after, of);
      }
      check_near(kind, rows[1], rows[0]);
    }
  }

  TEST_CASE("f32: indexes of several blocks, and tokens that enter them while the text grows") {
    for (const CacheKind kind : {CacheKind::quest, CacheKind::lsh}) {
      CAPTURE(recipe::yaml_text(kind));
      const EnginePair on =
          make_pair_of(tiny_model("tiny-2m"),
                       {.chunk = 512, .max_seqs = 2, .max_tokens = 6400, .caches = {few(kind)}});
      std::vector<Row> rows[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        std::vector<Row>& of = rows[engine == on.gpu.get() ? 1 : 0];
        kv::Cache& cache = engine->cache();
        const int slot = cache.create();
        kv::fill_random(cache, slot, 5000, 3);
        follow(*engine, slot, random_ids(*engine, 68, 2), of);
        // Questions of more tokens than wait outside an index, in the parts that a GPU takes: each
        // of them may move tokens into it.
        for (const uint64_t seed : {4, 5, 6}) {
          const Ids question = random_ids(*engine, 400, seed);
          for (size_t begin = 0; begin < question.size(); begin += 16)
            of.push_back(extend(*engine, slot, part_of(question, begin, 16)));
        }
        follow(*engine, slot, random_ids(*engine, 68, 7), of);
      }
      check_near(kind, rows[1], rows[0]);
    }
  }
}
