// Prompts that go through the model layer by layer: every bit is that of chunk by chunk.
#include <doctest/doctest.h>

#include "engine_runs.h"
#include "error_text.h"

using namespace tandem;
using namespace tandem::test;
using recipe::CacheKind;
using recipe::PrefillOrder;

namespace {

std::vector<recipe::Cache> caches() {
  std::vector<recipe::Cache> all(1);
  for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid, CacheKind::quest}) {
    recipe::Cache c;
    c.kind = kind;
    c.sinks = {4};
    c.recent = {16};
    c.dense_layers = {0};
    c.lsh = {.bits = 4, .tables = 24};
    all.push_back(c);
  }
  all.push_back(snapkv(60, 16));
  all.push_back(retrieval(64, 8));
  all.push_back(streaming(4, 100));
  return all;
}

/// Several prompts in one call: logits of each, then of a token after it.
std::vector<Row> run_together(decode::Engine& engine, const std::vector<Ids>& prompts) {
  std::vector<decode::SeqTokens> sequences;
  for (const Ids& ids : prompts) sequences.push_back({engine.cache().create(), ids});
  std::vector<Row> rows(prompts.size());
  engine.prefill(sequences, [&](std::span<const size_t> which, const Tensor& logits) {
    for (size_t i = 0; i < which.size(); ++i)
      rows[which[i]] = row_of(logits, static_cast<int64_t>(i));
  });
  for (const decode::SeqTokens& s : sequences)
    rows.push_back(extend(engine, s.slot, std::span(prompts[0]).first(1)));
  for (const decode::SeqTokens& s : sequences) engine.cache().release(s.slot);
  return rows;
}

}  // namespace

TEST_SUITE("decode/prefill_order") {
  TEST_CASE("logits and texts after them, in chunks of any size, under every kind of policy") {
    for (const DType compute : {DType::f32, DType::bf16})
      for (const recipe::Cache& cache : caches()) {
        CAPTURE(compute);
        CAPTURE(recipe::yaml_text(cache.kind));
        // All forwards have at most 32 rows, or all more: on AMX their products differ in bits.
        for (const int chunk : {1000, 64, 30}) {
          CAPTURE(chunk);
          const auto engine_of = [&](PrefillOrder order) {
            return make_engine(
                small_model("llama-3.1"),
                {.compute = compute, .chunk = chunk, .caches = {cache}, .order = order});
          };
          const auto chunks = engine_of(PrefillOrder::chunks),
                     layers = engine_of(PrefillOrder::layers);
          const Ids prompt = random_ids(*chunks, 300, 1), after = random_ids(*chunks, 6, 2);
          CHECK(run_alone(*layers, prompt, after) == run_alone(*chunks, prompt, after));
          // Prompts that go on, in calls of their own.
          CHECK(run_alone(*layers, prompt, after, 170) == run_alone(*chunks, prompt, after, 170));
          const std::vector<Ids> several = {random_ids(*chunks, 150, 3), random_ids(*chunks, 5, 4),
                                            random_ids(*chunks, 400, 5),
                                            random_ids(*chunks, 127, 6)};
          CHECK(run_together(*layers, several) == run_together(*chunks, several));
        }
      }
  }

  TEST_CASE("prompts in several passes, and some at once where keys are in host memory") {
    std::vector<recipe::Cache> all(1);
    for (const CacheKind kind : {CacheKind::full, CacheKind::lsh, CacheKind::hybrid}) {
      all.push_back(caches()[kind == CacheKind::hybrid ? 2 : 1]);
      all.back().kind = kind;
      all.back().place = recipe::CachePlace::host;
    }
    for (const recipe::Cache& cache : all)
      for (const int chunk : {64, 37}) {
        CAPTURE(recipe::yaml_text(cache.kind));
        CAPTURE(recipe::yaml_text(cache.place));
        CAPTURE(chunk);
        const auto engine_of = [&](int passes, int max_seqs) {
          return make_engine(small_model("llama-3.1"), {.chunk = chunk,
                                                        .max_seqs = max_seqs,
                                                        .caches = {cache},
                                                        .prompt_passes = passes,
                                                        .order = PrefillOrder::layers});
        };
        const auto one = engine_of(1, 4);
        const Ids prompt = random_ids(*one, 300, 1), after = random_ids(*one, 6, 2);
        const std::vector<Row> want = run_alone(*one, prompt, after),
                               want_parts = run_alone(*one, prompt, after, 170);
        const std::vector<Ids> several = {random_ids(*one, 150, 3), random_ids(*one, 5, 4),
                                          random_ids(*one, 400, 5), random_ids(*one, 90, 6)};
        const std::vector<Row> want_together = run_together(*one, several);
        for (const int passes : {2, 3, 8}) {
          CAPTURE(passes);
          const auto engine = engine_of(passes, 4);
          CHECK(engine->model().options().max_prompt_rows < one->model().options().max_prompt_rows);
          CHECK(run_alone(*engine, prompt, after) == want);
          CHECK(run_alone(*engine, prompt, after, 170) == want_parts);
          CHECK(run_together(*engine, several) == want_together);
        }
        // Questions about one text, whose keys each of them brings along.
        const auto ask = [&](decode::Engine& engine, bool together) {
          kv::Cache& keys = engine.cache();
          const int document = keys.create();
          (void)prefill(engine, document, several[2]);
          std::vector<decode::SeqTokens> questions;
          std::vector<Row> rows(3);
          for (int i = 0; i < 3; ++i)
            questions.push_back({keys.fork(document, 0),
                                 std::span(prompt).subspan(static_cast<size_t>(40 * i), 30)});
          const auto answer = [&](std::span<const decode::SeqTokens> texts, size_t first) {
            engine.prefill(texts, [&](std::span<const size_t> which, const Tensor& logits) {
              for (size_t i = 0; i < which.size(); ++i)
                rows[first + which[i]] = row_of(logits, static_cast<int64_t>(i));
            });
          };
          if (together) answer(questions, 0);
          for (size_t i = 0; !together && i < 3; ++i) answer({&questions[i], 1}, i);
          for (const decode::SeqTokens& q : questions) {
            rows.push_back(extend(engine, q.slot, after));
            keys.release(q.slot);
          }
          keys.release(document);
          return rows;
        };
        CHECK(ask(*one, true) == ask(*one, false));
        CHECK(ask(*engine_of(3, 4), true) == ask(*one, false));
        // Whole texts, of which the layer of prompts holds only some.
        for (const Ids& ids : several) {
          const auto alone = engine_of(1, 1);
          CHECK(run_alone(*alone, ids, after)[0] ==
                want_together[static_cast<size_t>(&ids - several.data())]);
        }
      }
  }

  TEST_CASE("f32: a window of the model, and heads that are normed") {
    for (const std::string model :
         {"mistral-window", "qwen2-layer-types", "qwen3-tied", "llama-odd"}) {
      CAPTURE(model);
      const auto engine_of = [&](PrefillOrder order) {
        return make_engine(small_model(model), {.chunk = 50, .max_seqs = 1, .order = order});
      };
      const auto chunks = engine_of(PrefillOrder::chunks), layers = engine_of(PrefillOrder::layers);
      const Ids prompt = random_ids(*chunks, 300, 1), after = random_ids(*chunks, 4, 2);
      CHECK(run_alone(*layers, prompt, after) == run_alone(*chunks, prompt, after));
    }
  }

  TEST_CASE("stopped between layers and within one, nothing is committed and the engine goes on") {
    int polls_left = -1;
    decode::EngineSpec spec =
        engine_spec({.chunk = 64, .max_seqs = 1, .order = PrefillOrder::layers});
    spec.interrupted = [&] { return polls_left >= 0 && polls_left-- == 0; };
    decode::Engine engine(decode::open_model(small_model("llama-3.1").string(), 0), spec);
    const Ids prompt = random_ids(engine, 300, 1), after = random_ids(engine, 3, 2);
    const std::vector<Row> want = run_alone(engine, prompt, after);
    const int free = engine.cache().store().free_pages();
    // A layer polls five times a chunk.
    for (const int polls : {0, 7, 5 * 5 * engine.config().n_layers - 1}) {
      CAPTURE(polls);
      const int slot = engine.cache().create();
      polls_left = polls;
      CHECK(kind_of([&] { prefill(engine, slot, prompt); }) == ErrorKind::interrupted);
      polls_left = -1;
      CHECK(engine.cache().length(slot) == 0);
      CHECK(prefill(engine, slot, prompt) == want[0]);
      engine.cache().release(slot);
    }
    for (const int calls : {1, 2}) {
      const int slot = engine.cache().create();
      const decode::SeqTokens part[] = {{slot, prompt}};
      std::vector<int64_t> seen;
      const auto stop = [&](int64_t done) {
        seen.push_back(done);
        return static_cast<int>(seen.size()) < calls;
      };
      CHECK(kind_of([&] { engine.prefill(part, {}, stop); }) == ErrorKind::interrupted);
      CHECK(seen.back() == int64_t{300} * calls / engine.config().n_layers);
      CHECK(engine.cache().length(slot) == 0);
      engine.cache().release(slot);
    }
    CHECK(engine.cache().store().free_pages() == free);
    CHECK(run_alone(engine, prompt, after) == want);
  }

  TEST_CASE("the rows that are kept are in the plan, and a windowed prefill refuses") {
    const decode::ModelFiles files = decode::open_model(small_model("llama-3.1").string(), 0);
    decode::EngineSpec spec = engine_spec({.max_seqs = 2, .max_tokens = 700});
    CHECK(decode::Engine::plan(files, spec).find("activations/prompt residual") == nullptr);
    spec.prefill_order = PrefillOrder::layers;
    CHECK(decode::Engine::plan(files, spec).find("activations/prompt residual")->bytes ==
          size_t{700} * static_cast<size_t>(files.config.dim) * sizeof(float));
    // Whole forwards of 512.
    spec.max_tokens = 3000;
    spec.total_tokens = 6000;
    spec.savings.prompt_passes = 3;
    CHECK(decode::Engine::plan(files, spec).find("activations/prompt residual")->bytes ==
          size_t{1024} * static_cast<size_t>(files.config.dim) * sizeof(float));
    spec.caches = {streaming(0, 100)};
    spec.caches[0].prefill = recipe::Prefill::windowed;
    CHECK_THROWS_WITH_AS(
        decode::Engine::plan(files, spec),
        "run.prefill_order: is layers, but cache.prefill windowed evicts keys during prefill",
        Error);
  }
}
