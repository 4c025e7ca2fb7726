// The hybrid policy on both devices: f32 models over texts that are long enough for an index.
#include <doctest/doctest.h>

#include "gpu/engine_pair.h"

using namespace tandem;
using namespace tandem::test;

namespace {

recipe::Cache hybrid(int bits, recipe::HybridTail tail,
                     recipe::HybridGroup group = recipe::HybridGroup::head) {
  recipe::Cache c;
  c.kind = recipe::CacheKind::hybrid;
  c.recent = {64};
  c.hybrid.bits = bits;
  c.hybrid.tail = tail;
  c.hybrid.group = group;
  return c;
}

/// Logits of the rows of a text of some length and of those after it.
std::vector<Row> run(decode::Engine& engine, const Ids& ids, const Ids& after) {
  const int slot = engine.cache().create();
  std::vector<Row> rows = {prefill(engine, slot, ids)};
  // Single rows, some of one call, more than a step with lists takes, and of a fork.
  for (Row& row : extend_each(engine, slot, std::span(after).first(6)))
    rows.push_back(std::move(row));
  rows.push_back(extend(engine, slot, std::span(after).subspan(6, 7)));
  rows.push_back(extend(engine, slot, std::span(after).subspan(13, 40)));
  const int fork = engine.cache().fork(slot, engine.cache().readers_of(slot));
  rows.push_back(extend(engine, fork, std::span(after).subspan(53, 3)));
  engine.cache().release(fork);
  // Tokens that enter the index after the first prompt.
  rows.push_back(prefill(engine, slot, std::span(ids).first(ids.size() / 2)));
  rows.push_back(extend(engine, slot, std::span(after).first(1)));
  engine.cache().release(slot);
  return rows;
}

}  // namespace

TEST_SUITE("gpu/decode/hybrid") {
  TEST_CASE("f32: logits of steps equal the CPU's") {
    double worst = 0;
    int near = 0, all = 0;
    for (const auto& [model, bits, tail] :
         {std::tuple{tiny_model("tiny-16m"), 3, recipe::HybridTail::means},
          {tiny_model("tiny-16m"), 1, recipe::HybridTail::none},
          {small_model("llama-3.1"), 2, recipe::HybridTail::means},
          {small_model("llama-odd"), 3, recipe::HybridTail::means},
          {small_model("mistral-window"), 3, recipe::HybridTail::none},
          {small_model("qwen3-odd"), 2, recipe::HybridTail::none}}) {
      CAPTURE(model.string());
      CAPTURE(bits);
      const int longest = model == tiny_model("tiny-16m") ? 2500 : 300;
      const EnginePair on = make_pair_of(
          model, {.chunk = 512, .max_tokens = 2 * longest, .caches = {hybrid(bits, tail)}});
      for (const int length : {40, 140, longest}) {
        CAPTURE(length);
        const Ids ids = random_ids(*on.cpu, length, 1), after = random_ids(*on.cpu, 60, 2);
        const std::vector<Row> gpu = run(*on.gpu, ids, after), cpu = run(*on.cpu, ids, after);
        for (size_t i = 0; i < gpu.size(); ++i) {
          const double difference = max_difference(gpu[i], cpu[i]);
          near += difference <= kF32Tolerance ? 1 : 0;
          worst = worse(worst, difference);
        }
        all += static_cast<int>(gpu.size());
      }
    }
    MESSAGE(near << " of " << all << " rows, largest |GPU - CPU| " << worst);
    // A step number of a key or query may lie at a bound, and a set then differ by a key.
    CHECK(near * 20 >= all * 19);
    CHECK(worst <= 0.1);
  }

  TEST_CASE("f32: logits equal the CPU's where the heads of a KV head share sets") {
    double worst = 0;
    int near = 0, all = 0;
    for (const auto& [model, bits, tail] :
         {std::tuple{tiny_model("tiny-16m"), 3, recipe::HybridTail::means},
          {tiny_model("tiny-16m"), 1, recipe::HybridTail::none},
          {small_model("llama-3.1"), 2, recipe::HybridTail::means},
          {small_model("qwen3-odd"), 2, recipe::HybridTail::means}}) {
      CAPTURE(model.string());
      const int longest = model == tiny_model("tiny-16m") ? 2500 : 300;
      const EnginePair on =
          make_pair_of(model, {.chunk = 512,
                               .max_tokens = 2 * longest,
                               .caches = {hybrid(bits, tail, recipe::HybridGroup::shared)}});
      const Ids ids = random_ids(*on.cpu, longest, 1), after = random_ids(*on.cpu, 60, 2);
      const std::vector<Row> gpu = run(*on.gpu, ids, after), cpu = run(*on.cpu, ids, after);
      for (size_t i = 0; i < gpu.size(); ++i) {
        const double difference = max_difference(gpu[i], cpu[i]);
        near += difference <= kF32Tolerance ? 1 : 0;
        worst = worse(worst, difference);
      }
      all += static_cast<int>(gpu.size());
    }
    MESSAGE(near << " of " << all << " rows, largest |GPU - CPU| " << worst);
    CHECK(near * 20 >= all * 19);
    CHECK(worst <= 0.1);
  }
}
