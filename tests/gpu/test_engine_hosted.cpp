// Keys in host memory beside a GPU: the CPU chooses and attends them, or the GPU fetches what it
// chose, and logits are those of an
// engine whose keys are all where they are chosen.
#include <doctest/doctest.h>

#include "decode/state.h"
#include "gpu/engine_pair.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

using recipe::Attend;

recipe::Cache hosted(recipe::CacheKind kind, Attend attend,
                     recipe::HybridGroup group = recipe::HybridGroup::head) {
  recipe::Cache c;
  c.kind = kind;
  c.recent = {64};
  c.hybrid.group = group;
  c.place = recipe::CachePlace::host;
  c.attend = attend;
  if (attend == Attend::cpu) c.index = recipe::IndexPlace::host;
  return c;
}

/// The GPU chooses, and the CPU attends all of each list or a part.
recipe::Cache divided(Attend attend, double share = 0.4,
                      recipe::HybridGroup group = recipe::HybridGroup::head) {
  recipe::Cache c = hosted(recipe::CacheKind::hybrid, attend, group);
  c.index = recipe::IndexPlace::device;
  if (attend == Attend::both) c.cpu_share = share;
  return c;
}

recipe::Cache in_eight_bits(recipe::Cache c) {
  c.host_dtype = recipe::HostDtype::int8;
  return c;
}

recipe::Cache on_device(recipe::Cache c) {
  c.place = recipe::CachePlace::device;
  c.attend = Attend::automatic;
  c.index = recipe::IndexPlace::automatic;
  return c;
}

/// The same cache with settings by which it chooses every key: no two orders of the same sums can
/// differ by a key, nor hash codes by a bit that counts.
recipe::Cache choosing_all(recipe::Cache c) {
  c.hybrid.exact = {1};
  c.lsh.bits = 1;  // half of the tables are a hit, and two hits are enough
  c.lsh.tables = 48;
  return c;
}

std::vector<recipe::Cache> ways() {
  using enum recipe::CacheKind;
  return {hosted(lsh, Attend::cpu),
          hosted(hybrid, Attend::cpu),
          hosted(hybrid, Attend::cpu, recipe::HybridGroup::shared),
          hosted(lsh, Attend::gpu),
          hosted(hybrid, Attend::gpu),
          hosted(hybrid, Attend::gpu, recipe::HybridGroup::shared),
          divided(Attend::cpu),
          divided(Attend::both),
          divided(Attend::both, 0.7, recipe::HybridGroup::shared)};
}

/// Logits after a text of some length in chunks, and of rows, of forks and of texts cut short after
/// it.
std::vector<Row> run(decode::Engine& engine, const Ids& ids, const Ids& after) {
  const int slot = engine.cache().create();
  std::vector<Row> rows = {prefill(engine, slot, ids)};
  for (Row& row : extend_each(engine, slot, std::span(after).first(6)))
    rows.push_back(std::move(row));
  rows.push_back(extend(engine, slot, std::span(after).subspan(6, 7)));
  rows.push_back(extend(engine, slot, std::span(after).subspan(13, 40)));
  const int fork = engine.cache().fork(slot, engine.cache().readers_of(slot));
  rows.push_back(extend(engine, fork, std::span(after).subspan(53, 3)));
  engine.cache().release(fork);
  const int n = engine.cache().length(slot);
  engine.cache().truncate(slot, n - 10);
  rows.push_back(extend(engine, slot, std::span(after).first(1)));
  engine.cache().truncate(slot, static_cast<int>(ids.size()) / 2);
  rows.push_back(extend(engine, slot, std::span(after).subspan(1, 2)));
  rows.push_back(prefill(engine, slot, std::span(ids).first(ids.size() / 2)));
  rows.push_back(extend(engine, slot, std::span(after).first(1)));
  engine.cache().release(slot);
  return rows;
}

/// Logits of a GPU whose keys are in host memory beside those of the device that chooses keys,
/// which has them all; of eight bits, beside a CPU that has both ends.
struct Comparison {
  int near = 0, rows = 0;
  double worst = 0;
  kv::KeyUsage gpu, cpu;
};

Comparison compare(const std::string& name, const recipe::Cache& cache,
                   double tolerance = kF32Tolerance) {
  const bool tiny = name == "tiny-16m";
  const int longest = tiny ? 2500 : 300;
  const std::filesystem::path model = tiny ? tiny_model(name) : small_model(name);
  Setup setup{
      .chunk = 512, .max_seqs = 2, .max_tokens = 2 * longest, .caches = {cache}, .device = kGpu};
  const auto split = make_engine(model, setup);
  // The same kernels choose keys on the GPU wherever these lie.
  if (!cache.is_eight_bit() && !cache.chooses_on_cpu())
    setup.caches[0] = on_device(cache);
  else
    setup.device = {};
  const auto whole = make_engine(model, setup);
  Comparison c;
  for (const int length : {40, 140, longest}) {
    const Ids ids = random_ids(*whole, length, 1), after = random_ids(*whole, 60, 2);
    const std::vector<Row> a = run(*split, ids, after), b = run(*whole, ids, after);
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const double difference = max_difference(a[i], b[i]);
      c.near += difference <= tolerance ? 1 : 0;
      c.worst = worse(c.worst, difference);
    }
    c.rows += static_cast<int>(a.size());
  }
  c.gpu = split->cache().total_usage(0);
  c.cpu = whole->cache().total_usage(0);
  return c;
}

}  // namespace

TEST_SUITE("gpu/decode/hosted") {
  // Everything but sets is computed in another order: one that differs by a key shows.
  TEST_CASE("f32: logits equal those of the device that chooses, where it has all keys") {
    int near = 0, rows = 0;
    for (const std::string name : {"tiny-16m", "llama-3.1", "llama-odd", "qwen3-tied"})
      for (const recipe::Cache& cache : ways()) {
        CAPTURE(name);
        CAPTURE(recipe::yaml_text(cache.kind));
        CAPTURE(recipe::yaml_text(cache.attend));
        const Comparison all = compare(name, choosing_all(cache));
        CHECK(all.worst <= kF32Tolerance);
        CHECK(all.rows > 0);
        const Comparison some = compare(name, cache);
        near += some.near;
        rows += some.rows;
        if (!cache.chooses_on_cpu()) continue;  // a GPU does not count what it chooses
        CHECK(some.gpu.queries == some.cpu.queries);
        CHECK(some.gpu.visible == some.cpu.visible);
        CHECK(some.gpu.fixed == some.cpu.fixed);
        CHECK(some.gpu.selected == doctest::Approx(some.cpu.selected).epsilon(0.01));
        CHECK(some.gpu.dense_bytes == some.cpu.dense_bytes);
      }
    MESSAGE(near << " of " << rows << " rows with the same sets");
    // A key at the edge of a set, or near a plane of a hash, may be on either side, and then counts
    // by its weight.
    CHECK(near >= 0.95 * rows);
  }

  TEST_CASE("prompts in several passes, some at once, leave the bits of one after the other") {
    using enum recipe::CacheKind;
    for (const recipe::Cache& cache :
         {hosted(full, Attend::cpu), hosted(full, Attend::gpu), hosted(lsh, Attend::cpu),
          hosted(hybrid, Attend::cpu), hosted(hybrid, Attend::gpu), divided(Attend::both)}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.attend));
      const auto engine_of = [&](int passes) {
        return make_engine(tiny_model("tiny-16m"), {.chunk = 256,
                                                    .max_seqs = 4,
                                                    .max_tokens = 2600,
                                                    .caches = {cache},
                                                    .device = kGpu,
                                                    .prompt_passes = passes});
      };
      const auto one = engine_of(1);
      // In whole chunks, so that forwards have the same rows.
      Batch batch{{},
                  {random_ids(*one, 2048, 1), random_ids(*one, 512, 2), random_ids(*one, 1792, 3),
                   random_ids(*one, 256, 4)}};
      std::vector<Row> want;
      for (const Ids& ids : batch.tokens) {
        const int slot = one->cache().create();
        want.push_back(prefill(*one, slot, ids));
        want.push_back(extend(*one, slot, std::span(ids).first(1)));
        one->cache().release(slot);
      }
      for (const int passes : {1, 3, 8}) {
        CAPTURE(passes);
        const auto engine = engine_of(passes);
        for (int again = 0; again < 2; ++again) {
          batch.slots.clear();
          for (size_t i = 0; i < batch.tokens.size(); ++i)
            batch.slots.push_back(engine->cache().create());
          const std::vector<Row> first = prefill_all(*engine, batch);
          for (size_t i = 0; i < first.size(); ++i) {
            CHECK(first[i] == want[2 * i]);
            CHECK(extend(*engine, batch.slots[i], std::span(batch.tokens[i]).first(1)) ==
                  want[2 * i + 1]);
          }
          for (const int slot : batch.slots) engine->cache().release(slot);
        }
      }
    }
  }

  // Pages that two steps write are copied once while the GPU is at the next layer, and prompts that
  // go on find those of their first part.
  TEST_CASE("f32: prompts in steps that end within pages, side by side and one after the other") {
    using enum recipe::CacheKind;
    for (const recipe::Cache& cache :
         {choosing_all(hosted(lsh, Attend::cpu)), choosing_all(hosted(hybrid, Attend::cpu)),
          choosing_all(hosted(hybrid, Attend::gpu)),
          choosing_all(in_eight_bits(hosted(lsh, Attend::cpu)))}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.attend));
      Setup setup{
          .chunk = 1024, .max_seqs = 3, .max_tokens = 2600, .caches = {cache}, .device = kGpu};
      const auto wide = make_engine(tiny_model("tiny-16m"), setup);
      setup.chunk = 90;
      const auto narrow = make_engine(tiny_model("tiny-16m"), setup);
      const std::vector<Ids> texts = {random_ids(*wide, 1900, 1), random_ids(*wide, 37, 2),
                                      random_ids(*wide, 700, 3)};
      const Ids after = random_ids(*wide, 5, 4), more = random_ids(*wide, 500, 5);
      std::vector<Row> rows[2];
      for (const auto& [engine, to] :
           {std::pair{wide.get(), &rows[0]}, std::pair{narrow.get(), &rows[1]}}) {
        Batch batch;
        for (const Ids& ids : texts) {
          batch.slots.push_back(engine->cache().create());
          batch.tokens.push_back(ids);
        }
        const auto add = [&](const std::vector<Row>& some) {
          to->insert(to->end(), some.begin(), some.end());
        };
        add(prefill_all(*engine, batch));
        for (const int slot : batch.slots) add(extend_each(*engine, slot, after));
        for (const int slot : batch.slots) add({prefill(*engine, slot, more)});
        for (const int slot : batch.slots) add(extend_each(*engine, slot, after));
      }
      const double worst = max_difference(rows[0], rows[1]);
      MESSAGE(rows[0].size() << " rows, largest difference " << worst);
      // Elements next to a bound between two numbers round to either.
      CHECK(worst <= (cache.is_eight_bit() ? 0.02 : kF32Tolerance));
    }
  }

  TEST_CASE("f32: batches write the text that the CPU alone writes, past tokens that are indexed") {
    using enum recipe::CacheKind;
    for (const recipe::Cache& cache :
         {hosted(lsh, Attend::cpu), hosted(hybrid, Attend::cpu), hosted(lsh, Attend::gpu),
          hosted(hybrid, Attend::gpu), divided(Attend::cpu), divided(Attend::both)}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.attend));
      const EnginePair on =
          make_pair_of(tiny_model("tiny-16m"),
                       {.chunk = 512, .max_seqs = 3, .max_tokens = 2600, .caches = {cache}});
      std::vector<decode::Request> requests;
      for (const int n : {1300, 37, 700})
        requests.push_back(request(random_ids(*on.cpu, n, static_cast<uint64_t>(n))));
      decode::GenerateSpec how;
      how.max_tokens = 150;
      CHECK(generate(*on.gpu, requests, how).ids == generate(*on.cpu, requests, how).ids);
    }
  }

  // Both ends on a CPU narrow and widen the same rows. An element next to the middle between two
  // whole numbers rounds to either, a 127th of its row's largest: of few elements, unless keys are
  // left out or taken in for it.
  TEST_CASE("f32: keys of eight bits give the logits that they give with both ends on a CPU") {
    using enum recipe::CacheKind;
    int near = 0, rows = 0;
    for (const recipe::Cache& cache :
         {hosted(lsh, Attend::cpu), hosted(hybrid, Attend::cpu), divided(Attend::cpu)}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      const Comparison all = compare("tiny-16m", in_eight_bits(choosing_all(cache)), 0.02);
      MESSAGE("all keys: largest difference " << all.worst);
      CHECK(all.near == all.rows);
      const Comparison some = compare("tiny-16m", in_eight_bits(cache), 0.02);
      near += some.near;
      rows += some.rows;
    }
    MESSAGE(near << " of " << rows << " rows within .02");
    CHECK(near >= 0.8 * rows);
  }

  TEST_CASE("f32: a saved state goes on as the text that it was") {
    for (const recipe::Cache& cache :
         {hosted(recipe::CacheKind::lsh, Attend::cpu),
          in_eight_bits(hosted(recipe::CacheKind::lsh, Attend::cpu)),
          in_eight_bits(divided(Attend::cpu)), hosted(recipe::CacheKind::hybrid, Attend::gpu),
          divided(Attend::both)})
      for (const int chunk : {512, 90}) {
        CAPTURE(recipe::yaml_text(cache.kind));
        CAPTURE(chunk);
        const auto engine = make_engine(
            tiny_model("tiny-16m"),
            {.chunk = chunk, .max_seqs = 2, .max_tokens = 2000, .caches = {cache}, .device = kGpu});
        const Ids ids = random_ids(*engine, 1500, 1), after = random_ids(*engine, 8, 2);
        const TemporaryFolder folder;
        const int slot = engine->cache().create();
        prefill(*engine, slot, ids);
        decode::save_state(folder / "state", *engine, slot, ids);
        const auto saved = decode::open_state(folder / "state", engine->files(), DType::f32);
        const int again = decode::restore_state(saved, *engine, engine->cache().all_readers());
        CHECK(extend_each(*engine, again, after) == extend_each(*engine, slot, after));
      }
  }

  TEST_CASE(
      "an interruption in the midst of a step ends it, and the text goes on as if it had not "
      "been") {
    using enum recipe::CacheKind;
    for (const recipe::Cache& cache : {hosted(lsh, Attend::cpu), divided(Attend::both)}) {
      CAPTURE(recipe::yaml_text(cache.kind));
      int polls = -1;  // until it is asked to stop; below 0: never
      decode::EngineSpec spec = engine_spec(
          {.chunk = 512, .max_seqs = 3, .max_tokens = 1600, .caches = {cache}, .device = kGpu});
      spec.interrupted = [&] { return polls >= 0 && polls-- == 0; };
      const auto engine = std::make_unique<decode::Engine>(
          decode::open_model(tiny_model("tiny-16m").string(), 0), spec);
      std::vector<decode::Request> requests;
      for (const int n : {900, 300, 1200})
        requests.push_back(request(random_ids(*engine, n, static_cast<uint64_t>(n))));
      decode::GenerateSpec how;
      how.max_tokens = 20;
      const auto whole = generate(*engine, requests, how).ids;
      const Ids ids = random_ids(*engine, 1000, 5), after = random_ids(*engine, 4, 6);
      const int slot = engine->cache().create();
      prefill(*engine, slot, ids);
      const int before = engine->cache().length(slot);
      int stopped = 0;
      for (const int n : {0, 1, 5, 12, 25}) {
        polls = n;
        try {
          extend(*engine, slot, std::span(after).first(1));
        } catch (const Error& e) {
          CHECK(e.kind() == ErrorKind::interrupted);
          CHECK(engine->cache().length(slot) == before);
          ++stopped;
        }
        polls = -1;
        engine->cache().truncate(slot, before);
      }
      CHECK(stopped >= 3);
      engine->cache().release(slot);
      // In a recorded step of two micro-batches.
      for (const int n : {0, 3, 9}) {
        int tokens = 0;
        decode::GenerateEvents events;
        events.on_token = [&](const decode::TokenEvent&) {
          if (++tokens == 12) polls = n;
        };
        try {
          decode::generate(*engine, requests, how, events);
          FAIL("it was not stopped");
        } catch (const Error& e) {
          CHECK(e.kind() == ErrorKind::interrupted);
        }
        polls = -1;
      }
      CHECK(generate(*engine, requests, how).ids == whole);
    }
  }
}
