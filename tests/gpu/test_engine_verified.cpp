// Drafts that read what the verification before them attended to, in a cache that the target reads.
#include <doctest/doctest.h>

#include <cmath>

#include "decode/precision_runs.h"
#include "gpu/engine_pair.h"
#include "kv/tree_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

constexpr int kTarget = 0, kDraft = 1;

/// Rows of texts under one reading, of each as many.
kv::Step run(Engine& engine, const std::vector<int>& slots, std::span<const Ids> texts, int reading,
             bool drafted, std::vector<Row>& logits) {
  std::vector<kv::SeqRows> rows;
  std::vector<std::vector<int>> parents;
  std::vector<kv::Tree> trees;
  Ids tokens;
  for (size_t b = 0; b < slots.size(); ++b) {
    rows.push_back({slots[b], static_cast<int>(texts[b].size())});
    parents.emplace_back();
    // A tree that branches at its root, of three nodes and more.
    for (size_t i = 0; i < texts[b].size(); ++i)
      parents[b].push_back(i == 2 ? 0 : static_cast<int>(i) - 1);
    tokens.insert(tokens.end(), texts[b].begin(), texts[b].end());
  }
  for (const std::vector<int>& parent : parents) trees.push_back({parent});
  kv::StepSpec spec{.rows = rows, .reading = kv::Reading{.keys = reading}};
  if (drafted) spec.trees = trees;
  kv::Step step = engine.cache().begin(spec);
  engine.model().forward(tokens, step, engine.cache());
  for (int32_t r = 0; r < step.n_rows; ++r)
    logits.push_back(row_of(engine.on_host(engine.logits(std::span(&r, 1))), 0));
  return step;
}

struct Logits {
  std::vector<Row> target, draft;
};

/// Rounds over two sequences: a draft's row each, which is not kept, and a verification, of which
/// the first row is.
void rounds(Engine& engine, const std::vector<int>& slots, int n, uint32_t seed, Logits& logits) {
  for (int round = 0; round < n; ++round) {
    const size_t rows = 3 + static_cast<size_t>(round % 4);
    std::vector<Ids> texts, heads;
    for (size_t b = 0; b < slots.size(); ++b) {
      texts.push_back(random_ids(engine, static_cast<int>(rows), seed + 10 * round + b));
      heads.push_back(part_of(texts[b], 0, 1));
    }
    (void)run(engine, slots, heads, kDraft, false, logits.draft);
    const kv::Step step = run(engine, slots, texts, kTarget, true, logits.target);
    engine.cache().commit(step, std::vector<int>(slots.size(), 1));
  }
}

/// The target's rows are the CPU's. A draft's are where both chose the same keys: where two scores
/// are nearly equal at the end of a list, rounding decides.
void check_same(const Logits& got, const Logits& want) {
  CHECK(max_difference(got.target, want.target) <= kF32Tolerance);
  REQUIRE(got.draft.size() == want.draft.size());
  size_t same = 0;
  for (size_t i = 0; i < got.draft.size(); ++i)
    same += max_difference(got.draft[i], want.draft[i]) <= kF32Tolerance ? 1 : 0;
  MESSAGE(same << " of " << got.draft.size() << " rows of drafts are the CPU's");
  CHECK(same * 10 >= got.draft.size() * 9);
}

}  // namespace

TEST_SUITE("gpu/decode/verified") {
  TEST_CASE("f32: what a verification chooses is what it chooses on the CPU") {
    for (const auto& [model, budget, window] : {std::tuple{tiny_model("tiny-16m"), 90, 16},
                                                {small_model("llama-3.1"), 40, 20},
                                                {small_model("mistral-window"), 60, 5},
                                                {small_model("llama-odd"), 100, 10},
                                                {small_model("qwen3-tied"), 130, 32}}) {
      CAPTURE(model.string());
      const EnginePair on = make_pair_of(
          model, {.max_seqs = 3, .caches = {recipe::Cache{}, verified(budget, window)}});
      const Ids ids[] = {random_ids(*on.cpu, 260, 1), random_ids(*on.cpu, 40, 2)};
      Logits logits[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        Logits& of = logits[engine == on.gpu.get() ? 1 : 0];
        kv::Cache& cache = engine->cache();
        std::vector<int> slots;
        for (const Ids& text : ids) {
          slots.push_back(cache.create({kTarget, kDraft}));
          prefill(*engine, slots.back(), text);
        }
        rounds(*engine, slots, 6, 100, of);
        // A fork goes its own way, and its parent on as if there were none.
        const int fork = cache.fork(slots[0], {kTarget, kDraft});
        rounds(*engine, {fork, slots[1]}, 2, 200, of);
        rounds(*engine, {slots[1], slots[0]}, 2, 300, of);
        cache.release(fork);
        // Back to where the window's queries choose, then to where all is read.
        cache.truncate(slots[0], cache.length(slots[0]) - 2);
        rounds(*engine, slots, 1, 400, of);
        cache.truncate(slots[0], 70);
        rounds(*engine, slots, 2, 500, of);
        // A slot that held another text.
        cache.release(slots[0]);
        slots[0] = cache.create({kTarget, kDraft});
        prefill(*engine, slots[0], part_of(ids[0], 60, 200));
        rounds(*engine, slots, 3, 600, of);
      }
      check_same(logits[1], logits[0]);
    }
  }

  TEST_CASE("the draft's keys are few: its rows differ from the target's, and they read no more") {
    const auto engine = make_engine(
        tiny_model("tiny-16m"), {.caches = {recipe::Cache{}, verified(64, 16)}, .device = kGpu});
    const int slot = engine->cache().create({kTarget, kDraft});
    prefill(*engine, slot, real_text(300));
    const Ids next[] = {real_text(305)};
    const Ids last[] = {part_of(next[0], 300, 5)};
    Logits logits;
    const kv::Step step = run(*engine, {slot}, last, kTarget, true, logits.target);
    engine->cache().commit(step, std::vector<int>{2});
    const Ids one[] = {part_of(next[0], 302, 1)};
    std::vector<Row> rows;
    for (const int reading : {kDraft, kTarget})
      (void)run(*engine, {slot}, one, reading, false, rows);
    const double difference = max_difference(rows[0], rows[1]);
    CHECK(difference > 1e-4);
    CHECK(std::isfinite(difference));
  }

  TEST_CASE("f32 and bf16: a budget beyond the text reads it all") {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const auto engine = make_engine(
          tiny_model("tiny-16m"),
          {.compute = compute, .caches = {recipe::Cache{}, verified(4096, 16)}, .device = kGpu});
      const int slot = engine->cache().create({kTarget, kDraft});
      const Ids text = real_text(310);
      prefill(*engine, slot, part_of(text, 0, 300));
      const Ids last[] = {part_of(text, 300, 5)}, one[] = {part_of(text, 305, 1)};
      std::vector<Row> target, rows;
      engine->cache().commit(run(*engine, {slot}, last, kTarget, true, target),
                             std::vector<int>{1});
      for (const int reading : {kDraft, kTarget})
        (void)run(*engine, {slot}, one, reading, false, rows);
      CHECK(max_difference(rows[0], rows[1]) <= (compute == DType::f32 ? kF32Tolerance : 0.1));
    }
  }
}
