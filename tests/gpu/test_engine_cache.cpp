#include "decode/precision_runs.h"
#include "gpu/device_buffer.h"
#include "gpu/engine_pair.h"
#include "kv/tree_runs.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using decode::Request;

namespace {

struct Case {
  std::filesystem::path model;
  recipe::Cache cache;
};

/// Whole texts and cut ones; models of several head sizes, one of them with a window of its own.
std::vector<Case> cases() {
  return {{tiny_model("tiny-16m"), {}},
          {tiny_model("tiny-16m"), streaming(4, 64)},
          {tiny_model("tiny-16m"), streaming(4, 40, true)},
          {tiny_model("tiny-16m"), snapkv(90, 16)},
          {small_model("llama-3.1"), snapkv(40, 32)},
          {small_model("mistral-window"), snapkv(60, 5)},
          {small_model("llama-odd"), snapkv(100, 10)},
          {small_model("qwen3-odd"), snapkv(130, 32)},
          {small_model("llama-3.1"), streaming(0, 1)},
          {small_model("llama-3.1"), streaming(70, 3, true)},
          {small_model("mistral-window"), {}},
          {small_model("qwen2-layer-types"), {}},
          {small_model("qwen2-layer-types"), snapkv(60, 8)},
          {small_model("mistral-window"), streaming(4, 16)},
          {small_model("mistral-window"), streaming(4, 64, true)},
          {small_model("llama-odd"), streaming(4, 16, true)},
          {small_model("qwen2-tied"), streaming(4, 16)},
          {small_model("qwen3-tied"), {}},
          {small_model("qwen3-tied"), streaming(4, 64, true)},
          {small_model("qwen3-odd"), streaming(4, 16)}};
}

/// Logits of steps of one row, of few and of many, after a text in the cache.
std::vector<Row> follow(Engine& engine, int slot, const Ids& after) {
  std::vector<Row> rows = extend_each(engine, slot, std::span(after).first(20));
  for (const auto& [begin, n] : {std::pair<size_t, size_t>{20, 7}, {27, 40}, {67, 1}})
    rows.push_back(extend(engine, slot, std::span(after).subspan(begin, n)));
  return rows;
}

}  // namespace

TEST_SUITE("gpu/decode/cache") {
  TEST_CASE("f32: cut texts and windows: prompts and steps equal the CPU's") {
    double worst = 0;
    for (const Case& c : cases())
      for (const int length : {1, 64, 200, 300}) {
        CAPTURE(c.model.string());
        CAPTURE(static_cast<int>(c.cache.recent));
        CAPTURE(length);
        static std::map<std::string, EnginePair> pairs;
        EnginePair& on = pairs[c.model.string() + std::to_string(static_cast<int>(c.cache.recent)) +
                               std::to_string(c.cache.reposition) +
                               std::to_string(static_cast<int>(c.cache.kind))];
        if (!on.cpu) on = make_pair_of(c.model, {.chunk = 128, .caches = {c.cache}});
        const Ids ids = random_ids(*on.cpu, length, 1), after = random_ids(*on.cpu, 68, 2);
        std::vector<Row> rows[2];
        std::vector<std::pair<int, int>> live[2];
        for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
          const int i = engine == on.gpu.get() ? 1 : 0, slot = engine->cache().create();
          rows[i] = {prefill(*engine, slot, ids)};
          for (Row& row : follow(*engine, slot, after)) rows[i].push_back(std::move(row));
          // More of the prompt after a cut, through the policy.
          rows[i].push_back(prefill(*engine, slot, std::span(ids).first(1)));
          live[i] = live_ranges(engine->cache(), slot);
          engine->cache().release(slot);
        }
        const double difference = max_difference(rows[1], rows[0]);
        CHECK(difference <= kF32Tolerance);
        CHECK(live[1] == live[0]);
        worst = worse(worst, difference);
      }
    MESSAGE("largest |GPU - CPU| " << worst);
  }

  TEST_CASE("f32: prompts that share a document: texts equal the CPU's") {
    for (const recipe::Cache& cache : {recipe::Cache{}, streaming(4, 128), snapkv(128, 16)}) {
      const EnginePair on =
          make_pair_of(tiny_model("tiny-16m"), {.max_seqs = 6, .caches = {cache}});
      const Ids text = real_text(330);
      const Ids document = part_of(text, 0, 290);
      std::vector<Ids> texts[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        kv::Cache& kv = engine->cache();
        const int slot = kv.create(), pages = kv.store().free_pages();
        const decode::SeqTokens open_end[] = {{slot, document, false}};
        engine->prefill(open_end, {});
        const std::string bytes = committed_bytes(kv, slot);
        std::vector<Request> questions;
        for (const size_t n : {0u, 1u, 7u, 20u, 40u}) {
          questions.push_back(request(part_of(text, 290, n)));
          questions.back().prefix_slot = slot;
          questions.back().prefix = document;
        }
        decode::GenerateSpec spec;
        spec.max_tokens = 40;
        texts[engine == on.gpu.get() ? 1 : 0] = generate(*engine, questions, spec).ids;
        CHECK(committed_bytes(kv, slot) == bytes);
        CHECK(kv.store().free_pages() == pages - 5);  // the document's own
      }
      CHECK(texts[1] == texts[0]);
      CHECK(texts[1][0] != texts[1][4]);
    }
  }

  TEST_CASE("f32: a truncated text goes on as the CPU's does, and as if the rest had never been") {
    const EnginePair on = make_pair_of(tiny_model("tiny-2m"));
    const Ids ids = random_ids(*on.cpu, 150, 3), after = random_ids(*on.cpu, 68, 4);
    for (const int n : {1, 63, 64, 65, 128, 149}) {
      CAPTURE(n);
      std::vector<Row> rows[3];
      for (int i = 0; i < 3; ++i) {
        Engine& engine = i == 0 ? *on.cpu : *on.gpu;
        const int slot = engine.cache().create();
        prefill(engine, slot, std::span(ids).first(static_cast<size_t>(i == 2 ? n : 150)));
        if (i < 2) {
          extend_each(engine, slot, std::span(after).first(5));
          engine.cache().truncate(slot, n);
        }
        rows[i] = follow(engine, slot, after);
        engine.cache().release(slot);
      }
      CHECK(max_difference(rows[1], rows[0]) <= kF32Tolerance);
      CHECK(max_difference(rows[2], rows[1]) <= kF32Tolerance);
    }
  }

  TEST_CASE("f32: chosen keys through forks, new choices and ends of others: as on the CPU") {
    for (const int refresh : {0, 8}) {
      CAPTURE(refresh);
      recipe::Cache cache = snapkv(90, 16);
      cache.snapkv.refresh = {refresh};
      const EnginePair on =
          make_pair_of(tiny_model("tiny-16m"), {.max_seqs = 3, .caches = {cache}});
      const Ids text = real_text(700);
      std::vector<Row> rows[2];
      for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
        std::vector<Row>& logits = rows[engine == on.gpu.get() ? 1 : 0];
        kv::Cache& kv = engine->cache();
        const auto go_on = [&](int slot, size_t from, size_t n) {
          for (Row& row : extend_each(*engine, slot, part_of(text, from, n)))
            logits.push_back(std::move(row));
        };
        const int a = kv.create();
        prefill(*engine, a, part_of(text, 0, 300));
        const int b = kv.fork(a, 0);  // both read one copy
        go_on(b, 300, 5);
        prefill(*engine, b, part_of(text, 310, 6));
        go_on(a, 300, 20);
        go_on(b, 320, 20);
        const int c = kv.fork(b, 0);
        kv.release(b);
        const int d = kv.create();
        prefill(*engine, d, part_of(text, 400, 200));
        go_on(c, 340, 20);
        go_on(d, 600, 20);
        kv.truncate(a, 310);  // the choice stays
        go_on(a, 500, 10);
        kv.truncate(a, 150);  // and goes: no queries are left
        go_on(a, 500, 10);
        prefill(*engine, a, part_of(text, 510, 30));
        go_on(a, 540, 10);
        go_on(c, 360, 10);
        kv.truncate(d, 60);  // within the budget
        go_on(d, 620, 5);
        for (const int slot : {a, c, d}) kv.release(slot);
      }
      CHECK(rows[0].size() == 130);
      CHECK(max_difference(rows[1], rows[0]) <= kF32Tolerance);
    }
  }

  TEST_CASE(
      "page tables there equal the stores', whatever sequences join, leave, fork or roll back") {
    // Layers 0 and 1 are in different page groups.
    const auto engine = make_engine(small_model("qwen2-layer-types"),
                                    {.max_seqs = 5, .logit_rows = 8, .device = kGpu});
    kv::Cache& cache = engine->cache();
    cuda::Queue& queue = *cache.store().exec().queue;
    PhiloxStream draw(5);
    const auto below = [&](size_t n) {
      return static_cast<int>(draw.below(static_cast<uint32_t>(n)));
    };
    std::vector<int> slots;
    for (int i = 0; i < 200; ++i) {
      CAPTURE(i);
      const int what = below(4);
      if (slots.empty() || (what == 0 && slots.size() < 5))
        slots.push_back(what == 0 && !slots.empty() ? cache.fork(slots[0], 0) : cache.create());
      else if (what == 1) {
        const int n = below(static_cast<size_t>(cache.length(slots.back())) + 1);
        if (cache.missing_token(slots.back(), n) < 0) cache.truncate(slots.back(), n);
      } else if (what == 2) {
        cache.release(slots.front());
        slots.erase(slots.begin());
      }
      std::vector<kv::SeqRows> rows;
      for (const int slot : slots)
        rows.push_back(
            {slot, below(static_cast<size_t>(std::min(40, 513 - cache.length(slot)))), false});
      if (rows.empty()) continue;
      const kv::Step step = cache.begin({.rows = rows});
      const auto pages = static_cast<size_t>(step.arrays.max_pages);
      for (const int slot : slots)
        for (const int layer : {0, 1}) {
          const ops::StepArrays& arrays = cache.keys(layer, step).step;
          std::vector<int32_t> table(pages), want;
          queue.copy_out(table.data(), arrays.page_table + static_cast<size_t>(slot) * pages,
                         pages * sizeof(int32_t));
          queue.wait();
          for (int page = 0; page < arrays.max_pages; ++page)
            want.push_back(cache.whole_store(layer).page(slot, page));
          REQUIRE(table == want);
        }
      std::vector<int> kept;
      for (int b = 0; b < step.n_seqs; ++b)
        kept.push_back(below(static_cast<size_t>(step.rows_of(b)) + 1));
      cache.commit(step, kept);
    }
  }

  TEST_CASE("f32: rows of trees equal the CPU's, and their committed paths go on alike") {
    double worst = 0;
    for (const Case& c : cases())
      for (const auto& [length, by_level] : {std::pair{60, false}, {200, false}, {60, true}}) {
        CAPTURE(c.model.string());
        CAPTURE(length);
        CAPTURE(by_level);
        const EnginePair on =
            make_pair_of(c.model, {.chunk = 256, .caches = {c.cache}, .logit_rows = 256});
        const Ids ids = random_ids(*on.cpu, length, 25), after = random_ids(*on.cpu, 68, 26);
        const LevelTree left = by_levels(small_tree(*on.cpu)),
                        right = by_levels(random_tree(*on.cpu, 90));
        const std::vector<int> paths[] = {left.path(9), right.path(89)};
        const int kept[] = {4, static_cast<int>(paths[1].size())};  // not to the end, and all
        std::vector<Row> rows[2];
        for (Engine* engine : {on.cpu.get(), on.gpu.get()}) {
          std::vector<Row>& logits = rows[engine == on.gpu.get() ? 1 : 0];
          kv::Cache& cache = engine->cache();
          const int a = cache.create(), b = cache.create();
          prefill(*engine, a, ids);
          prefill(*engine, b, std::span(ids).first(30));
          const kv::Step step = by_level ? verify_levels(*engine, a, left, b, right, logits)
                                         : verify(*engine, a, left, b, right, logits);
          std::vector<DeviceBuffer> placed;
          commit_paths(cache, step, kept, paths, [&](const std::vector<int32_t>& array) {
            return engine == on.cpu.get() ? array.data() : placed.emplace_back(array).as<int32_t>();
          });
          if (engine == on.gpu.get()) engine->queue()->wait();
          REQUIRE(logits.size() == 100);
          for (const int slot : {a, b})
            for (Row& row : follow(*engine, slot, after)) logits.push_back(std::move(row));
        }
        const double difference = max_difference(rows[1], rows[0]);
        CHECK(difference <= kF32Tolerance);
        worst = worse(worst, difference);
      }
    MESSAGE("largest |GPU - CPU| " << worst);
  }

  TEST_CASE("one graph holds the forwards of all levels, whatever texts come later") {
    const auto engine = make_engine(tiny_model("tiny-16m"), {.device = kGpu});
    kv::Cache& cache = engine->cache();
    const LevelTree tree = by_levels(small_tree(*engine));
    const int nodes = tree.level_ends.back();
    const kv::Tree trees[] = {{tree.parent}, {tree.parent}};
    const std::vector<int> level_ends[] = {tree.level_ends, tree.level_ends};
    Ids by_step;
    for (size_t l = 0, begin = 0; l < tree.level_ends.size(); ++l) {
      const auto end = static_cast<size_t>(tree.level_ends[l]);
      for (int b = 0; b < 2; ++b)
        by_step.insert(by_step.end(), &tree.tokens[begin], &tree.tokens[end - 1] + 1);
      begin = end;
    }
    const DeviceBuffer ids(by_step);
    const Courier::Spec parcels{.name = "parcels",
                                .in_bytes = kv::DeviceStep::outbox_bytes(2, 2 * nodes)};
    MemoryPlan plan;
    Courier::plan(parcels, kGpu, plan);
    Arena arena(std::move(plan));
    Courier courier(parcels, arena, cache.store().exec());
    std::unique_ptr<cuda::Graph> graph;
    Tensor logits;
    for (const int length : {60, 200, 125}) {
      const int a = cache.create(), b = cache.create();
      prefill(*engine, a, random_ids(*engine, length, 33));
      prefill(*engine, b, random_ids(*engine, 260 - length, 34));
      std::vector<Row> want;
      verify_levels(*engine, a, tree, b, tree, want);
      const kv::SeqRows rows[] = {{a, nodes, true}, {b, nodes, true}};
      const std::vector<kv::Step> steps =
          cache.begin_levels({.rows = rows, .trees = trees, .outbox = &courier.open()}, level_ends);
      courier.send();
      if (!graph)
        graph = std::make_unique<cuda::Graph>(*cache.store().exec().queue, [&] {
          const int32_t* next = ids.as<int32_t>();
          for (const kv::Step& step : steps) {
            engine->model().forward_ids(next, step, cache);
            next += step.n_rows;
          }
          logits = engine->logit_rows().slice(0, steps.back().n_rows);
          engine->model().logits(logits, nullptr);
        });
      graph->launch(*cache.store().exec().queue);
      const Tensor host = engine->on_host(logits);
      REQUIRE(host.rows() == 2);  // one node of each tree in the last level
      for (const int i : {0, 1})
        CHECK(same(row_of(host, i), want[static_cast<size_t>(nodes * (i + 1) - 1)]));
      cache.release(a);
      cache.release(b);
    }
  }

  TEST_CASE("a tree of few rows equals the CPU's in f32, and is near it in bf16") {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const auto cpu = make_engine(tiny_model("tiny-16m"));
      const auto gpu = make_engine(tiny_model("tiny-16m"), {.compute = compute, .device = kGpu});
      const Ids ids = real_text(250);
      const LevelTree tree = by_levels(small_tree(*cpu));
      std::vector<Row> rows[2], p[2];
      for (Engine* engine : {cpu.get(), gpu.get()}) {
        const int i = engine == gpu.get() ? 1 : 0;
        const int a = engine->cache().create(), b = engine->cache().create();
        prefill(*engine, a, ids);
        prefill(*engine, b, std::span(ids).first(64));
        std::vector<Row> whole;
        verify(*engine, a, tree, b, tree, whole);
        verify_levels(*engine, a, tree, b, tree, rows[i]);
        if (compute == DType::f32) CHECK(max_difference(rows[i], whole) <= kF32Tolerance);
        for (Row& row : rows[i])
          p[i].push_back(
              log_softmax({row.data(), DType::f32, {1, static_cast<int64_t>(row.size())}})[0]);
      }
      if (compute == DType::f32) CHECK(max_difference(rows[1], rows[0]) <= kF32Tolerance);
      const Divergence kl = divergence(p[0], p[1]);
      MESSAGE(std::string(dtype_name(compute)) << ": mean KL " << kl.mean);
      CHECK(kl.mean <= kMeanKl);
    }
  }
}
