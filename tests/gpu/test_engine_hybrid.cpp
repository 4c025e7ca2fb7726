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

recipe::Cache by_mass(int bits, recipe::HybridTail tail, double mass) {
  recipe::Cache c = hybrid(bits, tail);
  c.hybrid.budget = recipe::HybridBudget::mass;
  c.hybrid.mass = mass;
  c.hybrid.exact = {0.2};
  c.hybrid.refine = {0.5};
  return c;
}
recipe::Cache by_error(int bits, double error) {
  recipe::Cache c = hybrid(bits, recipe::HybridTail::sampled);
  c.hybrid.budget = recipe::HybridBudget::error;
  c.hybrid.error = error;
  c.hybrid.sample = {0.2};
  return c;
}

struct Model {
  std::filesystem::path folder;
  recipe::Cache cache;
};

/// Compares the logits of both devices: a share of the rows is equal, and none further apart than
/// `furthest`. A step number of a key or query may lie at a bound, and a set then differ by a key;
/// scales of samples and references of shared sets follow from many numbers.
void check_near(const std::vector<Model>& models, double share, double furthest) {
  double worst = 0;
  int near = 0, all = 0;
  for (const Model& model : models) {
    CAPTURE(model.folder.string());
    CAPTURE(model.cache.hybrid.bits);
    const int longest = model.folder == tiny_model("tiny-16m") ? 2500 : 300;
    const EnginePair on = make_pair_of(
        model.folder, {.chunk = 512, .max_tokens = 2 * longest, .caches = {model.cache}});
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
    // Bounds of errors, where there are any.
    const kv::KeyUsage gpu = on.gpu->cache().total_usage(0), cpu = on.cpu->cache().total_usage(0);
    CHECK(gpu.with_error == cpu.with_error);
    CHECK(gpu.mean_error() == doctest::Approx(cpu.mean_error()).epsilon(0.02));
  }
  MESSAGE(near << " of " << all << " rows, largest |GPU - CPU| " << worst);
  CHECK(near >= share * all);
  CHECK(worst <= furthest);
}

}  // namespace

TEST_SUITE("gpu/decode/hybrid") {
  TEST_CASE("f32: logits of steps equal the CPU's") {
    using enum recipe::HybridTail;
    check_near({{tiny_model("tiny-16m"), hybrid(3, means)},
                {tiny_model("tiny-16m"), hybrid(1, none)},
                {small_model("llama-3.1"), hybrid(2, means)},
                {small_model("llama-odd"), hybrid(3, means)},
                {small_model("mistral-window"), hybrid(3, none)},
                {small_model("qwen3-odd"), hybrid(2, none)}},
               0.95, 0.1);
  }

  TEST_CASE("f32: under tails of clusters, too") {
    using enum recipe::HybridTail;
    check_near({{tiny_model("tiny-16m"), hybrid(3, clusters)},
                {small_model("llama-3.1"), hybrid(2, clusters)},
                {small_model("llama-odd"), hybrid(3, clusters)},
                {tiny_model("tiny-16m"), by_mass(3, clusters, 0.6)},
                {tiny_model("tiny-16m"), hybrid(3, clusters, recipe::HybridGroup::shared)},
                {small_model("qwen3-odd"), hybrid(2, clusters, recipe::HybridGroup::shared)}},
               0.85, 0.1);
  }

  TEST_CASE("f32: under budgets by mass, too") {
    using enum recipe::HybridTail;
    check_near({{tiny_model("tiny-16m"), by_mass(3, means, 0.6)},
                {tiny_model("tiny-16m"), by_mass(2, none, 0.9)},
                {small_model("llama-odd"), by_mass(1, means, 0.3)}},
               0.95, 0.1);
  }

  // A sampled key weighs as much as all that it stands for.
  TEST_CASE("f32: under sampled tails, too, and under budgets by error") {
    using enum recipe::HybridTail;
    check_near({{tiny_model("tiny-16m"), hybrid(2, sampled)},
                {small_model("llama-3.1"), hybrid(3, sampled)},
                {small_model("llama-odd"), hybrid(1, sampled)},
                {small_model("qwen3-odd"), hybrid(2, sampled)},
                {tiny_model("tiny-16m"), by_mass(3, sampled, 0.6)},
                {tiny_model("tiny-16m"), by_error(3, 0.05)},
                {small_model("llama-odd"), by_error(2, 0.2)}},
               0.85, 1);
  }

  TEST_CASE("f32: samples of rows do not depend on the rows and sequences beside them") {
    const auto engine =
        make_engine(tiny_model("tiny-16m"), {.chunk = 512,
                                             .max_seqs = 3,
                                             .max_tokens = 2600,
                                             .caches = {hybrid(3, recipe::HybridTail::sampled)},
                                             .device = kGpu});
    const Ids ids = random_ids(*engine, 2200, 3), after = random_ids(*engine, 12, 4);
    const int alone = engine->cache().create(), other = engine->cache().create();
    prefill(*engine, alone, ids);
    prefill(*engine, other, std::span(ids).first(900));
    const int fork = engine->cache().fork(alone, engine->cache().readers_of(alone));
    const Row single = extend(*engine, alone, std::span(after).first(5));
    // In steps of one row, next to another sequence, the fork reads the same.
    for (size_t i = 0; i < 4; ++i)
      (void)extend_all(*engine, {{other, fork}, {part_of(ids, i, 1), part_of(after, i, 1)}});
    const std::vector<Row> both =
        extend_all(*engine, {{other, fork}, {part_of(ids, 4, 3), part_of(after, 4, 1)}});
    CHECK(max_difference(both[1], single) <= kF32Tolerance);
  }

  TEST_CASE("f32: logits equal the CPU's where the heads of a KV head share sets") {
    using enum recipe::HybridTail;
    using enum recipe::HybridGroup;
    check_near({{tiny_model("tiny-16m"), hybrid(3, means, shared)},
                {tiny_model("tiny-16m"), hybrid(1, none, shared)},
                {small_model("llama-3.1"), hybrid(2, means, shared)},
                {small_model("qwen3-odd"), hybrid(2, means, shared)}},
               0.85, 0.1);
  }
}
