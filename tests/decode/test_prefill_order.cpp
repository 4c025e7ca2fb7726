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
        for (const int chunk : {1000, 64, 37}) {
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
                                            random_ids(*chunks, 90, 6)};
          CHECK(run_together(*layers, several) == run_together(*chunks, several));
        }
      }
  }

  TEST_CASE("f32: a window of the model, and heads that are normed") {
    for (const std::string model : {"mistral-window", "qwen3-tied", "llama-odd"}) {
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
    spec.caches = {streaming(0, 100)};
    spec.caches[0].prefill = recipe::Prefill::windowed;
    CHECK_THROWS_WITH_AS(decode::Engine::plan(files, spec),
                         "run.prefill_order: is layers, but cache.prefill windowed gives keys back "
                         "as a prompt is read",
                         Error);
  }
}
