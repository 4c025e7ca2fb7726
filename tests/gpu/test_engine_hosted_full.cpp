// All keys of long texts in host memory next to a GPU. Streamed to it, they give the bits of keys
// that are there; attended by the CPU, logits within rounding of those.
#include <doctest/doctest.h>

#include "decode/state.h"
#include "gpu/engine_pair.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using recipe::Attend;

namespace {

/// Room for two layers, and for little more than one.
constexpr int kRings[] = {8, 1};

recipe::Cache full(Attend attend) {
  recipe::Cache c;
  c.place = recipe::CachePlace::host;
  c.attend = attend;
  return c;
}

/// Engines with keys in host memory, and on the GPU.
struct Both {
  std::unique_ptr<Engine> split, one;
};
Both engines(const std::filesystem::path& model, Attend attend, Setup setup) {
  setup.device = kGpu;
  setup.caches = {full(attend)};
  Both b;
  b.split = make_engine(model, setup);
  setup.caches = {recipe::Cache{}};
  b.one = make_engine(model, setup);
  return b;
}

/// Logits of prompts that go on, of batches of a text and a fork of it beside another text, of
/// steps of many rows, and of texts cut short.
std::vector<Row> run(Engine& engine, int length) {
  const Ids ids = random_ids(engine, length, 1), after = random_ids(engine, 400, 2);
  const int slot = engine.cache().create(), other = engine.cache().create();
  std::vector<Row> rows = {prefill(engine, slot, ids),
                           prefill(engine, other, part_of(after, 0, 90))};
  const auto add = [&](std::vector<Row> more) {
    for (Row& row : more) rows.push_back(std::move(row));
  };
  add(extend_each(engine, slot, part_of(after, 0, 6)));
  const int fork = engine.cache().fork(slot, engine.cache().readers_of(slot));
  for (size_t i = 0; i < 70; ++i)  // past whole pages
    add(extend_all(engine, {{slot, other, fork},
                            {part_of(after, 100 + i, 1), part_of(after, 200 + i, 1),
                             part_of(after, 300 + i, 1 + i % 2)}}));
  add(extend_all(engine, {{fork, slot}, {part_of(after, 20, 7), part_of(after, 30, 40)}}));
  engine.cache().release(fork);
  engine.cache().truncate(slot, engine.cache().length(slot) - 10);
  rows.push_back(extend(engine, slot, part_of(after, 0, 1)));
  engine.cache().truncate(slot, length / 2);
  rows.push_back(extend(engine, slot, part_of(after, 1, 2)));
  rows.push_back(prefill(engine, slot, part_of(ids, 0, ids.size() / 2)));
  add(extend_each(engine, slot, part_of(after, 0, 3)));
  engine.cache().release(slot);
  engine.cache().release(other);
  return rows;
}

std::vector<decode::Request> requests(const Engine& engine) {
  std::vector<decode::Request> all;
  for (const int n : {1300, 37, 700})
    all.push_back(request(random_ids(engine, n, static_cast<uint64_t>(n))));
  return all;
}

decode::GenerateSpec greedy(int n) {
  decode::GenerateSpec how;
  how.max_tokens = n;
  return how;
}

}  // namespace

TEST_SUITE("gpu/decode/hosted_full") {
  TEST_CASE("f32, bf16: streamed keys give the bits of keys on the GPU") {
    for (const DType compute : {DType::f32, DType::bf16})
      for (const std::string name : {"tiny-16m", "llama-odd", "qwen3-tied"}) {
        CAPTURE(name);
        CAPTURE(dtype_name(compute));
        const bool tiny = name == "tiny-16m";
        const int longest = tiny ? 2500 : 300;
        for (const int ring_eighths : kRings) {
          CAPTURE(ring_eighths);
          const Both on = engines(tiny ? tiny_model(name) : small_model(name), Attend::gpu,
                                  {.compute = compute,
                                   .chunk = 512,
                                   .max_seqs = 3,
                                   .max_tokens = longest + 400,
                                   .ring_eighths = ring_eighths});
          CHECK_FALSE(on.split->is_recordable());
          const PlanItem* const ring = on.split->memory_plan().find("kv/ring/k");
          REQUIRE(ring != nullptr);
          CHECK(ring->device == kGpu);
          for (const int length : {40, 140, longest}) {
            CAPTURE(length);
            CHECK(same(run(*on.split, length), run(*on.one, length)));
          }
          CHECK(on.split->cache().residence().streamed_bytes() > 0);
        }
      }
  }

  // In models that are small a copy is there before it is asked for: here it takes long, and a
  // buffer that is used too early or filled too soon shows.
  TEST_CASE("bf16: the same where layers take long to copy") {
    for (const int ring_eighths : kRings) {
      CAPTURE(ring_eighths);
      const Both on = engines("synthetic:llama-3.2-1b", Attend::gpu,
                              {.compute = DType::bf16,
                               .chunk = 2048,
                               .max_seqs = 3,
                               .max_tokens = 12800,
                               .ring_eighths = ring_eighths});
      const std::vector<Row> want = run(*on.one, 12000);
      for (int again = 0; again < 3; ++again) CHECK(same(run(*on.split, 12000), want));
      for (int again = 0; again < 3; ++again)
        CHECK(generate(*on.split, requests(*on.split), greedy(40)).ids ==
              generate(*on.one, requests(*on.one), greedy(40)).ids);
    }
  }

  TEST_CASE(
      "f32: layers whose keys stay on the GPU, with weights there or streamed, change no bit") {
    Setup setup{.chunk = 512, .max_seqs = 3, .max_tokens = 1100, .device = kGpu};
    const auto one = make_engine(tiny_model("tiny-16m"), setup);
    const std::vector<Row> want = run(*one, 700);
    const int n_layers = one->config().n_layers;
    for (const int resident : {0, 1, n_layers - 1, n_layers})
      for (const int streamed : {0, 1, n_layers}) {
        CAPTURE(resident);
        CAPTURE(streamed);
        setup.caches = {full(Attend::gpu)};
        setup.caches[0].resident_layers = {resident};
        setup.n_streamed = streamed;
        const auto split = make_engine(tiny_model("tiny-16m"), setup);
        CHECK(split->is_recordable() == (resident == n_layers && streamed == 0));
        CHECK(same(run(*split, 700), want));
      }
  }

  TEST_CASE("bf16: weights and keys that take long to copy, both streamed, change no bit") {
    Setup setup{
        .compute = DType::bf16, .chunk = 2048, .max_seqs = 3, .max_tokens = 12800, .device = kGpu};
    const auto one = make_engine("synthetic:llama-3.2-1b", setup);
    const std::vector<Row> want = run(*one, 12000);
    for (const int resident : {0, 3}) {
      CAPTURE(resident);
      setup.caches = {full(Attend::gpu)};
      setup.caches[0].resident_layers = {resident};
      setup.n_streamed = 10;
      const auto split = make_engine("synthetic:llama-3.2-1b", setup);
      for (int again = 0; again < 2; ++again) CHECK(same(run(*split, 12000), want));
    }
  }

  TEST_CASE("f32: logits of keys that the CPU attends equal those of keys on the GPU") {
    double worst = 0;
    for (const std::string name : {"tiny-16m", "llama-3.1", "llama-odd", "qwen3-tied"}) {
      CAPTURE(name);
      const bool tiny = name == "tiny-16m";
      const int longest = tiny ? 2500 : 300;
      const Both on = engines(tiny ? tiny_model(name) : small_model(name), Attend::automatic,
                              {.chunk = 512, .max_seqs = 3, .max_tokens = longest + 400});
      for (const int length : {40, 140, longest}) {
        const std::vector<Row> got = run(*on.split, length), want = run(*on.one, length);
        REQUIRE(got.size() == want.size());
        worst = worse(worst, max_difference(got, want));
      }
      CHECK(on.split->cache().total_usage(0).dense_bytes ==
            on.one->cache().total_usage(0).dense_bytes);
    }
    MESSAGE("largest difference " << worst);
    CHECK(worst <= kF32Tolerance);
  }

  TEST_CASE("f32: batches write the text that keys on the GPU give") {
    for (const Attend attend : {Attend::cpu, Attend::gpu}) {
      CAPTURE(recipe::yaml_text(attend));
      const Both on = engines(tiny_model("tiny-16m"), attend,
                              {.chunk = 512, .max_seqs = 3, .max_tokens = 2600});
      CHECK(generate(*on.split, requests(*on.split), greedy(150)).ids ==
            generate(*on.one, requests(*on.one), greedy(150)).ids);
    }
  }

  TEST_CASE("bf16: the CPU attends keys of the model's dtype") {
    const Both on =
        engines(tiny_model("tiny-16m"), Attend::cpu,
                {.compute = DType::bf16, .chunk = 512, .max_seqs = 3, .max_tokens = 2900});
    const std::vector<Row> got = run(*on.split, 2500), want = run(*on.one, 2500);
    REQUIRE(got.size() == want.size());
    // Roundings to bf16 on the way differ; texts of another key or row would differ by whole
    // logits.
    CHECK(max_difference(got, want) <= 0.5);
  }

  TEST_CASE("f32: a saved state goes on as the text that it was") {
    for (const Attend attend : {Attend::cpu, Attend::gpu}) {
      CAPTURE(recipe::yaml_text(attend));
      const Both on = engines(tiny_model("tiny-16m"), attend,
                              {.chunk = 512, .max_seqs = 2, .max_tokens = 2000});
      Engine& engine = *on.split;
      Ids ids = random_ids(engine, 1500, 1);
      const Ids after = random_ids(engine, 80, 2);
      const TemporaryFolder folder;
      const int slot = engine.cache().create();
      prefill(engine, slot, ids);
      (void)extend_each(engine, slot, part_of(after, 0, 70));
      ids.insert(ids.end(), after.begin(), after.begin() + 70);
      decode::save_state(folder / "state", engine, slot, ids);
      const auto saved = decode::open_state(folder / "state", engine.files(), DType::f32);
      const int again = decode::restore_state(saved, engine, engine.cache().all_readers());
      const Ids rest = part_of(after, 70, 10);
      CHECK(same(extend_each(engine, again, rest), extend_each(engine, slot, rest)));
    }
  }
}
