// Named adapters next to the weights of one model, or in turn in them.
#include <doctest/doctest.h>

#include "adapter_engines.h"
#include "error_text.h"

using namespace tandem;
using namespace tandem::test;
using decode::AdapterUse;
using decode::Engine;

TEST_SUITE("decode/adapters") {
  TEST_CASE("an adapter next to the weights says what the merged one says, in f32") {
    const Adapters adapters;
    const auto mixed = adapters.engine(AdapterUse::mix);
    for (const int n : {60, 200}) {  // in groups, and as products of matrices
      CAPTURE(n);
      const Ids ids = random_ids(*mixed, n, 5);
      const std::vector<Row> base = rows_of(*adapters.merged(-1), -1, ids);
      CHECK(same(rows_of(*mixed, -1, ids), base));
      for (int a = 0; a < 3; ++a) {
        CAPTURE(a);
        const std::vector<Row> want = rows_of(*adapters.merged(a), -1, ids);
        CHECK(worst(want, base) > 0.05);  // an adapter that changes nothing would show nothing
        CHECK(worst(rows_of(*mixed, a, ids), want) < 2e-4);
      }
    }
  }

  TEST_CASE("a named adapter adds to what is merged, where they overlap too") {
    const Adapters adapters;
    const auto over =
        write_slices(adapters.folder / "over", adapters.model, {.seed = 9, .share = 0.6});
    const auto engine = [&](bool first_named, AdapterUse use, bool merges_it = false) {
      recipe::Model m = adapters.section(first_named, 0);
      recipe::Adapter merged;
      merged.path = over;
      m.adapters.insert(m.adapters.begin(), merged);
      m.adapters.back().weight = 0.5;
      decode::ModelFiles files = decode::open_model(m, 0);
      if (merges_it) decode::merge_named(files, 0);
      decode::EngineSpec spec = engine_spec({});
      spec.adapters = use;
      return std::make_unique<Engine>(std::move(files), spec);
    };
    const auto fused = engine(false, AdapterUse::none);
    const Ids ids = random_ids(*fused, 60, 5);
    const std::vector<Row> want = rows_of(*fused, -1, ids);
    CHECK(same(rows_of(*engine(true, AdapterUse::none, true), -1, ids), want));
    const auto mixed = engine(true, AdapterUse::mix);
    CHECK(worst(rows_of(*mixed, 0, ids), want) < 2e-4);
    const std::vector<Row> merged_alone = rows_of(*mixed, -1, ids);
    CHECK(worst(merged_alone, want) > 0.02);
    const auto switched = engine(true, AdapterUse::switched);
    switched->switch_adapter(0);
    CHECK(worst(rows_of(*switched, 0, ids), want) < 2e-4);
    switched->switch_adapter(-1);
    CHECK(worst(rows_of(*switched, -1, ids), merged_alone) < 2e-4);
  }

  TEST_CASE("switched A, B, factors, A, base: the weights of each, bit for bit") {
    const Adapters adapters;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(dtype_name(dtype));
      const Setup setup{.compute = dtype};
      const auto engine = adapters.engine(AdapterUse::switched, setup);
      const Ids ids = random_ids(*engine, 40, 6);
      std::map<int, std::vector<Row>> want;
      for (int a = -1; a < 3; ++a) want[a] = rows_of(*adapters.merged(a, setup), -1, ids);
      // Trainable rows are multiplied as others are: the base's bits tell.
      CHECK(same(rows_of(*engine, -1, ids), want[-1]));
      for (const int a : {0, 1, 2, 0, -1, 2, -1, 1, 1, -1}) {
        CAPTURE(a);
        engine->switch_adapter(a);
        CHECK(same(rows_of(*engine, a, ids), want[a]));
      }
    }
  }

  TEST_CASE("one batch mixes them: each sequence's bits are those of any other company") {
    const Adapters adapters;
    const auto engine = adapters.engine(AdapterUse::mix);
    std::vector<Ids> prompts;
    for (int i = 0; i < 4; ++i) prompts.push_back(random_ids(*engine, 30 + 40 * i, 10 + i));
    const auto run = [&](const std::vector<int>& of) {
      std::vector<int> slots;
      std::vector<decode::SeqTokens> parts, steps;
      std::vector<Row> rows(4);
      for (size_t i = 0; i < 4; ++i) {
        slots.push_back(engine->cache().create());
        engine->use_adapter(slots[i], of[i]);
        parts.push_back({slots[i], std::span(prompts[i]).first(prompts[i].size() - 1), true});
        steps.push_back({slots[i], std::span(prompts[i]).last(1), true});
      }
      engine->prefill(parts, {});
      const Tensor logits = engine->extend(steps);
      for (int64_t i = 0; i < 4; ++i) rows[static_cast<size_t>(i)] = row_of(logits, i);
      for (const int slot : slots) engine->cache().release(slot);
      return rows;
    };
    const std::vector<Row> mixed = run({0, 1, 2, -1});
    for (int a = -1; a < 3; ++a) {
      const std::vector<Row> alone = run({a, a, a, a});
      CHECK(same(alone[static_cast<size_t>(a < 0 ? 3 : a)],
                 mixed[static_cast<size_t>(a < 0 ? 3 : a)]));
      for (size_t i = 0; i < 3; ++i)
        if (static_cast<int>(i) != a) CHECK(!same(alone[i], mixed[i]));
    }
    CHECK(same(run({-1, -1, -1, -1})[3], mixed[3]));
  }

  TEST_CASE("generated text: mixed, and switched in groups, as one adapter at a time") {
    const Adapters adapters;
    const auto mixed = adapters.engine(AdapterUse::mix, {.max_seqs = 3});
    const auto switched = adapters.engine(AdapterUse::switched, {.max_seqs = 3});
    std::vector<decode::Request> requests;
    const int of[] = {1, 0, -1, 1, 2, 0, 1};
    for (size_t i = 0; i < std::size(of); ++i) {
      requests.push_back(request(random_ids(*mixed, 12, 40 + i)));
      requests.back().adapter = of[i];
    }
    decode::GenerateSpec spec;
    spec.max_tokens = 10;
    const Generated a = generate(*mixed, requests, spec), b = generate(*switched, requests, spec);
    CHECK(a.report.switches == 0);
    CHECK(b.report.switches == 4);  // to 1, 0, none, 2
    for (int adapter = -1; adapter < 3; ++adapter) {
      const auto alone = adapters.merged(adapter);
      for (size_t i = 0; i < std::size(of); ++i) {
        if (of[i] != adapter) continue;
        CAPTURE(i);
        const Generated want =
            generate(*alone, std::vector{request(Ids(requests[i].tokens))}, spec);
        CHECK(a.ids[i] == want.ids[0]);
        CHECK(b.ids[i] == want.ids[0]);
        CHECK(a.text[i] == want.text[0]);
      }
    }
  }

  TEST_CASE("a fork goes on with its adapter, and a slot that is used again has none") {
    const Adapters adapters;
    const auto engine = adapters.engine(AdapterUse::mix);
    const Ids ids = random_ids(*engine, 20, 8);
    const int slot = engine->cache().create();
    engine->use_adapter(slot, 0);
    (void)prefill(*engine, slot, ids);
    const int fork = engine->cache().fork(slot, 0);
    const Row a = extend(*engine, slot, std::span(ids).first(1));
    CHECK(same(extend(*engine, fork, std::span(ids).first(1)), a));
    engine->cache().release(fork);
    engine->cache().release(slot);
    CHECK(same(run_alone(*engine, ids, {}), run_alone(*adapters.merged(-1), ids, {})));
  }

  TEST_CASE("DoRA is switched, not mixed") {
    TemporaryFolder folder;
    recipe::Model m;
    m.path = {tiny_model(Adapters::kModel).string()};
    recipe::Adapter a;
    a.path =
        write_factors(folder / "dora", tiny_model(Adapters::kModel), {.seed = 4, .dora = true});
    m.adapters = {a};
    Engine merged(decode::open_model(m, 0), engine_spec({}));
    m.adapters[0].name = "d";
    decode::EngineSpec spec = engine_spec({});
    spec.adapters = AdapterUse::mix;
    CHECK(error_text([&] {
            Engine::plan(decode::open_model(m, 0), spec);
          }).find("also scales the base") != std::string::npos);
    spec.adapters = AdapterUse::switched;
    Engine engine(decode::open_model(m, 0), spec);
    const Ids ids = random_ids(engine, 30, 9);
    engine.switch_adapter(0);
    CHECK(same(rows_of(engine, 0, ids), rows_of(merged, -1, ids)));
  }

  TEST_CASE("names that nothing could ask for are refused; the plan names every byte") {
    const Adapters adapters;
    const decode::ModelFiles files = decode::open_model(adapters.section(true), 0);
    CHECK(error_text([&] { Engine::plan(files, engine_spec({})); }).find("has a name") !=
          std::string::npos);
    for (const AdapterUse use : {AdapterUse::mix, AdapterUse::switched}) {
      decode::EngineSpec spec = engine_spec({});
      spec.adapters = use;
      const MemoryPlan plan = Engine::plan(files, spec);
      CHECK(plan.group_bytes("adapters", {}) > 0);
      Engine engine(decode::open_model(adapters.section(true), 0), spec);
      CHECK(engine.memory_plan().group_bytes("adapters", {}) == plan.group_bytes("adapters", {}));
    }
  }
}
