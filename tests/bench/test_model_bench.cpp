#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "bench/layer_bench.h"
#include "bench/model_report.h"
#include "engine_runs.h"
#include "kv/fill_random.h"
#include "machine/hardware.h"
#include "model/spec/work.h"

using namespace tandem;
using namespace tandem::bench;
using tandem::machine::Ceilings;

namespace {

/// As short as a measurement can be.
ModelBench quick(std::vector<ModelPhase> phases, int new_tokens = 8) {
  return {.phases = std::move(phases), .new_tokens = {new_tokens}, .min_runs = 3, .min_time = {0}};
}

recipe::Run run_of(int context, int batch = 1, int chunk = 64) {
  recipe::Run run;
  run.context = {context};
  run.batch = batch;
  run.prefill_chunk = {chunk};
  return run;
}

decode::ModelFiles open(const std::string& name) {
  return decode::open_model(test::small_model(name).string(), 0);
}

ModelCase case_of(const decode::ModelFiles& files, const ModelBench& bench, const recipe::Run& run,
                  const recipe::Cache& cache = {}) {
  return model_case(bench, run, cache, recipe::Compute::f32, files.config);
}

PhaseResult decode_of(const std::string& model, const ModelBench& bench, const recipe::Run& run,
                      const recipe::Cache& cache = {}) {
  decode::ModelFiles files = open(model);
  const ModelCase c = case_of(files, bench, run, cache);
  return EngineBench(std::move(files), c, {}).decode();
}

}  // namespace

TEST_SUITE("bench/model_case") {
  TEST_CASE("parts of a model are not measured on the CPU under the name of a GPU") {
    const model::ModelConfig config = model::synthetic_config("llama-3.2-1b");
    const Device gpu{Device::Kind::cuda, 0};
    for (const ModelPhase phase : {ModelPhase::linear, ModelPhase::attention}) {
      const auto make = [&](Device device) {
        return model_case(quick({phase}), run_of(64), {}, recipe::Compute::bf16, config, device);
      };
      CHECK_NOTHROW(make({}));
      CHECK_THROWS_WITH_AS(
          make(gpu),
          "bench.phases: linear and attention are supported only on the CPU, found cuda:0", Error);
    }
    CHECK(
        model_case(quick({ModelPhase::decode}), run_of(64), {}, recipe::Compute::bf16, config, gpu)
            .device == gpu);
  }
}

TEST_SUITE("bench/model_work") {
  TEST_CASE("operations of the Llama 3.2 1B shape") {
    const model::ModelConfig c = model::synthetic_config("llama-3.2-1b");
    // 16 (2048 * 3072 + 2048 * 2048 + 3 * 2048 * 8192) weights, twice.
    CHECK(layer_flops(c) == 2.0 * 973078528);
    CHECK(head_flops(c) == 2.0 * 128256 * 2048);
    CHECK(attention_flops(c, 10) == 4.0 * 2048 * 10);
    CHECK(prefill_pairs(c, 4) == 16 * 10);
  }

  TEST_CASE("visible pairs, counted one by one") {
    for (const int window : {0, 1, 3, 7, 20})
      for (const int context : {1, 2, 7, 19}) {
        int64_t pairs = 0;
        for (int row = 0; row < context; ++row)
          pairs += window == 0 ? row + 1 : std::min(row + 1, window);
        CHECK(model::prefill_pairs(context, window) == static_cast<double>(pairs));
      }
  }
}

TEST_SUITE("bench/model_bench") {
  TEST_CASE("sizes are resolved against the model") {
    const decode::ModelFiles files = open("llama-3.1");
    const int limit = files.config.max_context;
    const ModelBench both = quick({ModelPhase::prefill, ModelPhase::decode});
    CHECK(case_of(files, both, run_of(0)).context == limit - 8);
    CHECK(case_of(files, quick({ModelPhase::prefill}), run_of(0)).context == limit);
    CHECK(case_of(files, both, run_of(limit - 8)).max_tokens() == limit);
    CHECK(case_of(files, both, run_of(5, 0)).batch == 1);
    CHECK_THROWS_WITH_AS(case_of(files, both, run_of(limit - 7)),
                         doctest::Contains("tokens plus 8 decoded tokens, but "), Error);
    CHECK_THROWS_AS(case_of(files, both, run_of(4, 1 << 20)), Error);
  }

  TEST_CASE("prefill: every run reads all prompts, work by hand") {
    decode::ModelFiles files = open("llama-3.1");
    const model::ModelConfig config = files.config;
    const ModelCase c = case_of(files, quick({ModelPhase::prefill}), run_of(70, 3, 32));
    const PhaseResult r = EngineBench(std::move(files), c, {}).prefill();
    CHECK(r.samples.ms.size() == 3);
    CHECK(r.tokens == 210);
    const double linear = 70 * layer_flops(config) + head_flops(config);
    const double pairs = config.n_layers * 70 * 71 / 2.0;
    CHECK(r.work.flops == doctest::Approx(3 * (linear + attention_flops(config, pairs))));
    CHECK(r.linear_share == doctest::Approx(linear / (r.work.flops / 3)));
  }

  TEST_CASE("decode: bytes of weights and of the keys that the policy reads") {
    decode::ModelFiles files = open("llama-3.1");
    const model::ModelConfig config = files.config;
    // Warm-up and samples together are 6 steps from 100 tokens on, of which rows see 101 to 106
    // keys.
    ModelBench bench = quick({ModelPhase::decode}, 6);
    const ModelCase c = case_of(files, bench, run_of(100, 2));
    EngineBench engine(std::move(files), c, {});
    const PhaseResult r = engine.decode();
    CHECK(r.tokens == 2);
    const auto weights = static_cast<double>(engine.memory_plan().group_bytes("weights", {}));
    const double key = 2.0 * config.kv_dim() * sizeof(float) * config.n_layers;
    CHECK(r.work.bytes > 2 * 101 * key);
    CHECK(r.work.bytes < weights + 2 * 106 * key);

    const PhaseResult windowed =
        decode_of("llama-3.1", bench, run_of(100, 2), test::streaming(4, 16));
    CHECK(r.work.bytes - windowed.work.bytes >= 2 * (101 - 20) * key);
    CHECK(r.work.bytes - windowed.work.bytes <= 2 * (106 - 20) * key);
  }

  TEST_CASE("decode starts over under every policy, from prompts of any alignment") {
    for (const bool reposition : {false, true})
      for (const int context : {1, 63, 64, 130}) {
        ModelBench bench = quick({ModelPhase::decode}, 3);
        bench.min_runs = 80;  // 27 times around, more pages than the pool has
        const PhaseResult full = decode_of("mistral-window", bench, run_of(context, 2));
        CHECK(full.samples.ms.size() == 80);
        const PhaseResult cut =
            decode_of("llama-3.1", bench, run_of(context, 3), test::streaming(4, 16, reposition));
        CHECK(cut.samples.ms.size() == 80);
      }
  }

  TEST_CASE("one engine prefills and then decodes") {
    decode::ModelFiles files = open("qwen2-tied");
    const ModelCase c =
        case_of(files, quick({ModelPhase::prefill, ModelPhase::decode}), run_of(70, 2));
    EngineBench engine(std::move(files), c, {});
    CHECK(engine.prefill().samples.ms.size() == 3);
    CHECK(engine.decode().samples.ms.size() == 3);
    CHECK(engine.prefill().samples.ms.size() == 3);
  }

  TEST_CASE("random keys and values need no prefill") {
    const model::ModelConfig config = open("llama-3.1").config;
    const double key = 2.0 * config.kv_dim() * sizeof(float) * config.n_layers;
    // How many runs warm up depends on their times, and each step reads one key more.
    const auto bytes_without_keys = [&](bool random_kv) {
      ModelBench bench = quick({ModelPhase::decode});
      bench.random_kv = random_kv;
      const PhaseResult r = decode_of("llama-3.1", bench, run_of(130, 2));
      const auto n_steps = r.samples.warmup + static_cast<double>(r.samples.ms.size());
      REQUIRE(n_steps <= 8);  // without starting over
      return r.work.bytes - 2 * key * (130 + (n_steps + 1) / 2);
    };
    const double weights = bytes_without_keys(false);
    CHECK(weights > 0);
    CHECK(weights == bytes_without_keys(true));
  }

  TEST_CASE("parts of a layer") {
    const decode::ModelFiles files = open("mistral-window");
    const ModelBench bench = quick({ModelPhase::linear, ModelPhase::attention});
    const ModelCase c = case_of(files, bench, run_of(150, 1, 64));
    const PhaseResult linear = bench_linear(c, files.config, {});
    CHECK(linear.baseline->pairs() == 3);
    CHECK(linear.work.flops ==
          doctest::Approx(64 * layer_flops(files.config) / files.config.n_layers));
    const PhaseResult attention = bench_attention(c, files.config, {});
    CHECK(attention.samples.ms.size() == 3);
    CHECK(attention.work.flops ==
          attention_flops(files.config,
                          model::prefill_pairs(150, files.config.layer(0).attention.window)));
  }

  TEST_CASE("loading: every run opens the folder and packs all weights again") {
    const ModelBench bench = quick({ModelPhase::load});
    const decode::ModelFiles files = open("llama-3.1");
    const ModelCase c = case_of(files, bench, run_of(20));
    int opened = 0;
    std::vector<double> shares;
    const PhaseResult r = bench_load(
        [&] {
          ++opened;
          return open("llama-3.1");
        },
        c, {}, [&](double share) { shares.push_back(share); });
    CHECK(r.samples.ms.size() == 3);
    CHECK(opened == 3 + r.samples.warmup);
    CHECK(std::count(shares.begin(), shares.end(), 1.0) == opened);
    CHECK(r.work.bytes ==
          static_cast<double>(phase_plan(ModelPhase::load, c, files).group_bytes("weights", {})));
    CHECK(r.work.bytes > 0);
  }

  TEST_CASE("an interruption ends every phase") {
    const auto stop = [] { return true; };
    for (const ModelPhase phase : {ModelPhase::prefill, ModelPhase::decode, ModelPhase::linear,
                                   ModelPhase::attention, ModelPhase::load}) {
      CAPTURE(phase_name(phase));
      decode::ModelFiles files = open("llama-3.1");
      const model::ModelConfig config = files.config;
      const ModelCase c = case_of(files, quick({phase}), run_of(20));
      try {
        if (phase == ModelPhase::linear) bench_linear(c, config, stop);
        if (phase == ModelPhase::attention) bench_attention(c, config, stop);
        if (phase == ModelPhase::load) bench_load([] { return open("llama-3.1"); }, c, stop);
        EngineBench engine(std::move(files), c, stop);
        if (phase == ModelPhase::prefill) engine.prefill();
        if (phase == ModelPhase::decode) engine.decode();
        FAIL("went on");
      } catch (const Error& e) {
        CHECK(e.kind() == ErrorKind::interrupted);
      }
    }
  }
}

TEST_SUITE("bench/fill_random") {
  TEST_CASE("values belong to seed, layer and position, whatever the page") {
    const auto engine = test::make_engine(test::small_model("llama-3.1"));
    kv::Cache& cache = engine->cache();
    const int a = cache.create(), b = cache.create(), c = cache.create();
    kv::fill_random(cache, a, 100, 7);
    kv::fill_random(cache, b, 100, 7);
    kv::fill_random(cache, c, 100, 8);
    CHECK(cache.length(a) == 100);
    CHECK(cache.store().page(a, 0) != cache.store().page(b, 0));
    const std::string values = test::committed_bytes(cache, a);
    CHECK(values == test::committed_bytes(cache, b));
    CHECK(values != test::committed_bytes(cache, c));
    // No two tokens are alike: neither between layers nor between keys and values.
    const auto row = static_cast<size_t>(cache.geometry().head_dim) * sizeof(float);
    std::vector<std::string> rows;
    for (size_t i = 0; i + row <= values.size(); i += row) rows.push_back(values.substr(i, row));
    std::sort(rows.begin(), rows.end());
    CHECK(std::adjacent_find(rows.begin(), rows.end()) == rows.end());
  }
}

TEST_SUITE("bench/model_report") {
  TEST_CASE("a record and a row say the same") {
    decode::ModelFiles files = open("llama-3.1");
    ModelBench bench = quick({ModelPhase::decode}, 16);
    bench.random_kv = true;
    const ModelCase c = case_of(files, bench, run_of(100, 4), test::streaming(4, 64));
    const ModelIdentity identity = identify(files, c.dtype);
    const Ceilings ceilings{
        .threads = 2, .mem_read_gbps = 20, .f32_gflops = 50, .gemm_f32_gflops = 100};
    PhaseResult r{.phase = ModelPhase::decode,
                  .samples = {.warmup = 2, .ms = {9, 10, 11}},
                  .tokens = 4,
                  .work = {.bytes = 1e8, .flops = 4e8}};
    Record record("pig-bench", &ceilings);
    add_result(record, c, identity, r, ceilings);
    const Json& j = record.json();
    CHECK(j["throughput"]["decode_tok_s"] == doctest::Approx(400));
    CHECK(j["throughput"]["decode_tok_s_user"] == doctest::Approx(100));
    CHECK(j["roofline"]["achieved_gbps"] == doctest::Approx(10));
    CHECK(j["roofline"]["frac_of_copy"] == doctest::Approx(0.5));
    CHECK(j["timing"]["decode_step"]["p50"] == 10);
    CHECK(j["workload"]["kv"] == "random");
    CHECK(j["workload"]["new_tokens"] == 16);
    CHECK(j["model"]["name"] == "llama-3.1");

    record.set_memory("cpu", "peak", size_t{3} << 29);
    CHECK(
        render_records({j}, {model_view()}, "md") ==
        "| model     | context | batch | method         | phase  | tok/s +- sd | ms p50 | ms p99 | "
        "GB/s | % of read | GFLOP/s | % of GEMM | peak GiB | note      |\n"
        "| --------- | ------: | ----: | -------------- | ------ | ----------: | -----: | -----: | "
        "---: | --------: | ------: | --------: | -------: | --------- |\n"
        "| llama-3.1 |     100 |     4 | streaming 4+64 | decode |   400 +- 40 |     10 |  10.98 | "
        "10.0 |        50 |    40.0 |        40 |     1.50 | random KV |\n");
    CHECK(j["steady"] == true);
    const Json flat = flat_fields(j, {});
    CHECK(flat.at("gemm_frac") == doctest::Approx(0.4));
    CHECK(flat.at("speedup").is_null());
    CHECK(flat.at("tok_s") == doctest::Approx(400));
    CHECK(flat.at("tok_s_sd") == doctest::Approx(40));
    CHECK(flat.at("ms_p50") == 10);
    CHECK(flat.at("samples") == 3);
    CHECK(flat.at("steady") == true);
    CHECK(flat.at("peak_bytes") == size_t{3} << 29);
  }

  TEST_CASE("a mean of samples that are not steady is no speed") {
    decode::ModelFiles files = open("llama-3.1");
    ModelBench bench = quick({ModelPhase::decode});
    bench.random_kv = true;
    const ModelCase c = case_of(files, bench, run_of(100, 4));
    const PhaseResult r{.phase = ModelPhase::decode,
                        .samples = {.ms = {9, 10, 11, 10, 900, 40}},
                        .tokens = 4,
                        .work = {.bytes = 1e8}};
    Record record("pig-bench");
    add_result(record, c, identify(files, c.dtype), r, {});
    CHECK(record.json()["steady"] == false);
    CHECK(record.json()["timing"]["decode_step"]["outside_frac"] == doctest::Approx(1.0 / 3));
    const std::string said = "not steady: 33 % of 6 samples lie more than 25 % from the median";
    CHECK(record.json()["warnings"].dump().find("decode_step: " + said) != std::string::npos);
    const auto row = model_row(record.json());
    CHECK(row[5] == "381 at p50 (not steady)");
    CHECK(row.back() == said + ", random KV");
  }

  TEST_CASE("loading to a GPU is compared with copies to it, elsewhere with reads") {
    const decode::ModelFiles files = open("llama-3.1");
    const ModelCase c = case_of(files, quick({ModelPhase::load}), run_of(100));
    const PhaseResult r{
        .phase = ModelPhase::load, .samples = {.ms = {10, 10}}, .work = {.bytes = 1e8}};
    const auto record_with = [&](const Ceilings& ceilings) {
      Record record("pig-bench", &ceilings);
      add_result(record, c, identify(files, c.dtype), r, ceilings);
      return record.json();
    };
    CHECK(record_with({.mem_read_gbps = 20})["roofline"]["frac_of_copy"] == doctest::Approx(0.5));
    const Json on_gpu = record_with({.mem_read_gbps = 4000, .copy_in_gbps = 40});
    CHECK(on_gpu["roofline"]["frac_of_copy"] == doctest::Approx(0.25));
    const auto row = model_row(on_gpu);
    CHECK(row[4] == "load");
    CHECK(row[8] == "10.0");
    CHECK(row[9] == "25");
    CHECK(row[10].empty());
    CHECK(row[13] == "limit: 40.0 GB/s from pinned host memory");
  }

  TEST_CASE("the share of oneDNN's speed is the inverse of the ratio of times") {
    const decode::ModelFiles files = open("llama-3.1");
    const ModelCase c = case_of(files, quick({ModelPhase::linear}), run_of(100, 1, 512));
    PhaseResult r{.phase = ModelPhase::linear, .samples = {.ms = {10, 10}}, .work = {.flops = 1e9}};
    r.baseline = Comparison{.a = r.samples, .b = {.ms = {8, 8}}, .ratio = 1.25, .ci95 = {1.0, 2.0}};
    Record record("pig-bench");
    add_result(record, c, identify(files, c.dtype), r, {});
    CHECK(record.json()["baseline"]["ratio"] == 0.8);
    CHECK(record.json()["baseline"]["ci95_low"] == 0.5);
    CHECK(record.json()["baseline"]["ci95_high"] == 1.0);
    CHECK(record.json()["workload"]["rows"] == 512);
    const auto row = model_row(record.json());
    CHECK(row.back() == "80.0 % of oneDNN alone (50.0 to 100.0)");
  }
}
