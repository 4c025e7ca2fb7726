#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "machine/hosted_plan.h"
#include "machine/hosted_report.h"

using namespace tandem;
using namespace tandem::machine;
using doctest::Approx;
using kv::StepTraffic;
using recipe::Attend;
using recipe::CacheKind;
using recipe::IndexPlace;

namespace {

/// The machine of the aims: 16 GB of weights and 0.8 GB of dense layers take 4 ms there. Bytes take
/// all time but that of turns.
HostedRates rates(double turn_us = 0, double code_gscores = 0) {
  return {.gpu_gbps = 4200,
          .link_gbps = 55.8,
          .dram_gbps = 104,
          .dram_rows_gbps = 75,
          .code_gscores = code_gscores,
          .turn_us = turn_us,
          .gpu_source = "measured",
          .host_source = "measured"};
}

HostedRun llama_8b(CacheKind kind, int batch = 1) {
  HostedRun run{.cache = {},
                .geometry = {.n_layers = 32,
                             .n_heads = 32,
                             .n_kv_heads = 8,
                             .head_dim = 128,
                             .dtype = DType::bf16},
                .length = 98304,
                .batch = batch,
                .weight_bytes = 15e9};
  run.cache.kind = kind;
  run.cache.place = recipe::CachePlace::host;
  run.cache.dense_layers = {0, 16};
  run.cache.hybrid.exact = {0.023};
  return run;
}

/// An H200 and 16 cores of its host in the run of records/gpu-h200-across-ways.jsonl.
HostedRates recorded_rates(double dram = 116.5, double dram_rows = 106) {
  HostedRates r = assumed_rates(*find_gpu_card("h200"));
  r.gpu_gbps = 4520;
  r.link_gbps = 55.2;
  r.dram_gbps = dram;
  r.dram_rows_gbps = dram_rows;
  return r;
}

HostedRoom enough(const recipe::Cache&) { return {}; }

}  // namespace

TEST_SUITE("bench/hosted_plan") {
  TEST_CASE("a step by its bytes") {
    const StepTraffic t{.hosted_layers = 10,
                        .gpu_keys = 1e9,
                        .gpu_index = 1e9,
                        .cpu_rows = 3e9,
                        .cpu_stream = 1e9,
                        .link_rows = 2e9};
    const HostedRates r{.gpu_gbps = 1000,
                        .link_gbps = 50,
                        .dram_gbps = 100,
                        .dram_rows_gbps = 60,
                        .turn_us = 200,
                        .gpu_source = {},
                        .host_source = {}};
    const StepWeights w{.bytes = 10e9};
    const HostedTime cpu = hosted_time(t, w, r, Attend::cpu, 1);
    CHECK(cpu.gpu_ms == Approx(12));
    CHECK(cpu.cpu_ms == Approx(50 + 10));
    CHECK(cpu.link_ms == Approx(40));
    CHECK(cpu.turn_ms == Approx(2));
    CHECK(cpu.copy_ms == 0);
    CHECK(cpu.step_ms == Approx(12 + 40 + 60 + 2));
    CHECK(hosted_time(t, w, r, Attend::both, 1).step_ms == Approx(12 + 62));
    StepTraffic fetched = t;
    fetched.cpu_rows = fetched.cpu_stream = 0;
    const HostedTime gpu = hosted_time(fetched, w, r, Attend::gpu, 1);
    CHECK(gpu.turn_ms == 0);
    CHECK(gpu.step_ms == Approx(12 + 40));
    // Two micro-batches read weights twice; what is longer hides the other.
    const HostedTime two = hosted_time(t, w, r, Attend::cpu, 2);
    CHECK(two.gpu_ms == Approx(22));
    CHECK(two.step_ms == Approx(62));
    CHECK(hosted_time(fetched, w, r, Attend::gpu, 2).gpu_ms == Approx(12));
    // The CPU ranks by codes: as fast as they are read, or as their scores are computed.
    StepTraffic coded = t;
    coded.cpu_codes = 2e9;
    coded.cpu_scores = 300e6;
    CHECK(hosted_time(coded, w, r, Attend::cpu, 1).cpu_ms == Approx(60 + 20));
    HostedRates slow = r;
    slow.code_gscores = 3;
    CHECK(hosted_time(coded, w, slow, Attend::cpu, 1).cpu_ms == Approx(60 + 100));
    // The GPU ranks at a share of its rate, by kernels that cost some time in each micro-batch.
    StepTraffic ranked = t;
    ranked.choosing_layers = 10;
    slow.gpu_index_share = .25;
    slow.choose_us = 100;
    CHECK(hosted_time(ranked, w, slow, Attend::both, 1).gpu_ms == Approx(10 + 1 + 4 + 1));
    CHECK(hosted_time(ranked, w, slow, Attend::both, 2).gpu_ms == Approx(20 + 1 + 4 + 2));
    // What the link takes of host memory is missing there, as far as rates say.
    slow.dram_shared = .5;
    CHECK(hosted_time(t, w, slow, Attend::both, 1).cpu_ms == Approx(60 + 10));
    CHECK(hosted_time(fetched, w, slow, Attend::gpu, 1).cpu_ms == 0);
    // Copies ahead of their use hide all else, or are hidden.
    CHECK(hosted_time(t, {.bytes = 10e9, .streamed = 10e9}, r, Attend::cpu, 1).step_ms ==
          Approx(200));
    CHECK(hosted_time(t, {.bytes = 10e9, .streamed = 1e9}, r, Attend::cpu, 1).step_ms ==
          Approx(114));
  }

  TEST_CASE("the arithmetic of 8B at 98,304 tokens") {
    const HostedPlan full = plan_hosted(llama_8b(CacheKind::full), rates(), enough);
    REQUIRE(full.options.size() == 2);
    const double layers = full.chosen().traffic.hosted_layers;
    CHECK(full.chosen().cache.attend == Attend::cpu);
    CHECK(full.chosen().time.cpu_ms * 30 / layers == Approx(116).epsilon(0.01));
    CHECK(full.options[1].cache.attend == Attend::gpu);
    CHECK(full.options[1].time.copy_ms * 30 / layers == Approx(217).epsilon(0.01));
    CHECK(full.options[1].time.step_ms == full.options[1].time.copy_ms);

    HostedRun run = llama_8b(CacheKind::hybrid);
    run.cache.index = IndexPlace::device;
    const HostedPlan hybrid = plan_hosted(run, rates(), enough);
    REQUIRE(hybrid.options.size() == 3);
    for (const HostedOption& o : hybrid.options) {
      if (o.cache.attend == Attend::cpu) CHECK(o.time.cpu_ms == Approx(15).epsilon(0.02));
      if (o.cache.attend == Attend::gpu) CHECK(o.time.link_ms == Approx(20).epsilon(0.02));
    }
    // The codes take .2 ms on the GPU, some 7 on the host.
    run.cache.index = IndexPlace::automatic;
    run.cache.attend = Attend::cpu;
    const HostedPlan cpu = plan_hosted(run, rates(), enough);
    REQUIRE(cpu.options.size() == 2);
    CHECK(cpu.options[0].cache.index == IndexPlace::device);
    CHECK(cpu.options[1].time.step_ms - cpu.options[0].time.step_ms == Approx(6).epsilon(0.05));
  }

  TEST_CASE("what an H200 and its host took, and which way was the fastest") {
    struct Measured {
      Attend attend;
      IndexPlace index;
      int length, batch;
      double cpu_share, ms;
      HostedRates rates = recorded_rates();
    };
    // records/host-kv.md: the hybrid at 2.5 % of the keys.
    using enum Attend;
    const auto device = IndexPlace::device;
    const Measured all[] = {{both, device, 98304, 1, .626, 17.1},
                            {cpu, device, 98304, 1, 0, 19.5},
                            {gpu, device, 98304, 1, 0, 30.4},
                            {both, device, 98304, 4, .735, 43.4},
                            {cpu, device, 98304, 4, 0, 47.7},
                            {cpu, IndexPlace::host, 98304, 4, 0, 211, recorded_rates(136.4, 114.6)},
                            {both, device, 12288, 1, .076, 8.98},
                            {both, device, 24576, 1, .39, 10.2},
                            {both, device, 49152, 1, .547, 12.4},
                            {both, device, 262144, 1, .674, 31.0},
                            {both, device, 524288, 1, .688, 57.4}};
    for (const Measured& m : all) {
      CAPTURE(recipe::yaml_text(m.attend));
      CAPTURE(m.length);
      CAPTURE(m.batch);
      HostedRun run = llama_8b(CacheKind::hybrid, m.batch);
      run.length = m.length;
      run.cache.hybrid.exact = {0.025};
      run.cache.attend = m.attend;
      run.cache.index = m.index;
      run.cache.cpu_share = m.cpu_share;
      const HostedPlan plan = plan_hosted(run, m.rates, enough);
      REQUIRE(plan.options.size() == 1);
      CHECK(plan.chosen().time.step_ms == Approx(m.ms).epsilon(0.1));
    }
    for (const int batch : {1, 4}) {
      HostedRun run = llama_8b(CacheKind::hybrid, batch);
      run.cache.hybrid.exact = {0.025};
      const HostedPlan plan = plan_hosted(run, recorded_rates(), enough);
      REQUIRE(plan.options.size() == 4);
      CHECK(plan.chosen().cache.attend == both);
      CHECK(plan.options[1].cache.attend == cpu);
      CHECK(plan.options[1].cache.index == device);
      CHECK(plan.options[batch == 1 ? 2 : 3].cache.attend == (batch == 1 ? gpu : cpu));
    }
  }

  TEST_CASE("eight bits are for the CPU, wherever the index lies") {
    HostedRun run = llama_8b(CacheKind::hybrid);
    run.cache.attend = Attend::automatic;
    run.cache.index = IndexPlace::automatic;
    run.cache.host_dtype = recipe::HostDtype::int8;
    const HostedPlan plan = plan_hosted(run, rates(), enough);
    REQUIRE(plan.options.size() == 2);
    for (const HostedOption& o : plan.options) CHECK(o.cache.attend == Attend::cpu);
    CHECK(plan.chosen().cache.index == IndexPlace::device);
    // 15 ms of lines of bf16.
    CHECK(plan.chosen().time.cpu_ms == Approx(15.0 * 320 / 512).epsilon(0.02));
  }

  TEST_CASE("both: CPU and link end together") {
    for (const int batch : {1, 2, 4})
      for (const double turn_us : {0.0, 50.0}) {
        CAPTURE(batch);
        CAPTURE(turn_us);
        const HostedPlan plan =
            plan_hosted(llama_8b(CacheKind::hybrid, batch), rates(turn_us), enough);
        REQUIRE(plan.options.size() == 4);
        const HostedOption& o = plan.chosen();
        CHECK(o.cache.attend == Attend::both);
        CHECK(o.cache.index == IndexPlace::device);
        const double link = o.time.link_ms + (batch > 1 ? o.time.gpu_ms : 0);
        CHECK(o.time.cpu_ms + o.time.turn_ms == Approx(link).epsilon(0.03));
        for (const HostedOption& other : plan.options) CHECK(o.time.step_ms <= other.time.step_ms);
      }
    // 75 to 55.8, of nothing else.
    CHECK(plan_hosted(llama_8b(CacheKind::hybrid), rates(), enough).chosen().cache.cpu_share ==
          Approx(75 / (75 + 55.8)).epsilon(0.001));
    HostedRun run = llama_8b(CacheKind::hybrid);
    run.cache.attend = Attend::both;
    run.cache.cpu_share = .3;
    CHECK(plan_hosted(run, rates(), enough).chosen().cache.cpu_share == .3);
  }

  TEST_CASE("the fastest way that fits, among those that the recipe leaves") {
    const auto no_index_on_gpu = [](const recipe::Cache& c) -> HostedRoom {
      return {.fits = c.index == IndexPlace::host};
    };
    const HostedPlan plan = plan_hosted(llama_8b(CacheKind::hybrid), rates(), no_index_on_gpu);
    CHECK(plan.chosen().cache.attend == Attend::cpu);
    CHECK(plan.chosen().cache.index == IndexPlace::host);
    CHECK(plan.chosen().fits);
    CHECK(plan.options[1].time.step_ms < plan.chosen().time.step_ms);
    CHECK(hosted_choice(plan).find(" (does not fit)") != std::string::npos);
    const HostedPlan none = plan_hosted(llama_8b(CacheKind::hybrid), rates(),
                                        [](const recipe::Cache&) -> HostedRoom { return {false}; });
    CHECK_FALSE(none.chosen().fits);
    CHECK(none.chosen().cache.attend == Attend::both);

    const HostedPlan lsh = plan_hosted(llama_8b(CacheKind::lsh), rates(), enough);
    REQUIRE(lsh.options.size() == 1);
    CHECK(lsh.chosen().cache.attend == Attend::cpu);
    CHECK(lsh.chosen().cache.index == IndexPlace::host);
    HostedRun forced = llama_8b(CacheKind::lsh);
    forced.cache.attend = Attend::gpu;
    CHECK(plan_hosted(forced, rates(), enough).chosen().cache.index == IndexPlace::device);
    forced = llama_8b(CacheKind::hybrid);
    forced.cache.attend = Attend::gpu;
    const HostedPlan gpu = plan_hosted(forced, rates(), enough);
    REQUIRE(gpu.options.size() == 1);
    CHECK(hosted_choice(gpu).find("gpu, index in GPU memory, ") == 0);
    CHECK(hosted_choice(gpu).find("the only option in this recipe") != std::string::npos);
    forced = llama_8b(CacheKind::full);
    forced.cache.attend = Attend::both;
    CHECK_THROWS_WITH_AS(plan_hosted(forced, rates(), enough),
                         "cache.attend: is both with cache.index auto, which is not supported for "
                         "kind full with an offloaded KV cache",
                         Error);
    // Weights that a way has to stream are part of its time.
    const HostedPlan streamed =
        plan_hosted(llama_8b(CacheKind::hybrid), rates(), [](const recipe::Cache& c) -> HostedRoom {
          return {.streamed_bytes = c.index == IndexPlace::device ? 10e9 : 0};
        });
    CHECK(streamed.chosen().cache.index == IndexPlace::host);
    CHECK(streamed.options.back().time.step_ms == Approx(10e9 / 55.8e6));
  }

  TEST_CASE("rates of a card that is planned for, and of one of no model") {
    const HostedRates h200 = assumed_rates(*find_gpu_card("h200"));
    CHECK(h200.gpu_gbps == 4800);
    CHECK(h200.link_gbps == 63);
    CHECK(h200.dram_gbps == 104);
    CHECK(h200.dram_rows_gbps == Approx(.72 * 104));
    CHECK(h200.code_gscores == Approx(16 * .14));
    CHECK(h200.gpu_source == "data sheet of h200");
    CHECK(h200.host_source == "assumed");
    const HostedRates any = assumed_rates(any_gpu_card(size_t{24} << 30));
    CHECK(any.gpu_gbps == 3350);
    CHECK(any.gpu_source == "data sheet of h100, assumed");
  }

  TEST_CASE("what a plan says") {
    const HostedPlan plan = plan_hosted(llama_8b(CacheKind::hybrid), rates(50, 2.24), enough);
    const std::string choice = hosted_choice(plan);
    CHECK(choice.find("both (CPU 53 %, GPU 47 % over the link), index in GPU memory, ") == 0);
    CHECK(choice.find(" ms per step, others: cpu ") != std::string::npos);
    CHECK(choice.find("cpu (index in host memory) ") != std::string::npos);
    constexpr Device kGpu{Device::Kind::cuda, 0};
    MemoryPlan memory;
    memory.add("kv/host.k", size_t{6} << 30);
    memory.add("kv/host.v", size_t{6} << 30);
    memory.add("kv/near.k", size_t{1} << 20, kGpu);
    memory.add("index/hybrid.codes", size_t{1} << 30, kGpu);
    const std::string text = hosted_lines(plan, memory, kGpu);
    CHECK(text.find("kv       30 layers offloaded to host memory: 12.00 GiB of KV, 0 B of "
                    "index\n         on cuda:0: 1.0 MiB of resident KV, 0 B of prefill staging, "
                    "1.00 GiB of index\nattend   both (") == 0);
    // 2.3 % of the keys and the sinks, for 32 heads in 30 layers, are 1.112 GB: 53.0 % of these.
    CHECK(text.find(
              "\nbytes    per token: 16.4 GB of GPU memory, 589 MB of host memory by the CPU, ") !=
          std::string::npos);
    CHECK(text.find("\nstep     ") != std::string::npos);
    CHECK(text.find("\nrates    GPU memory 4200 GB/s, link 55.8 GB/s (measured)\n         host "
                    "memory 104 GB/s, rows of 256 bytes 75 GB/s, 2.24 G scores/s from key codes "
                    "(measured)\n") != std::string::npos);
    const nlohmann::ordered_json j = hosted_json(plan);
    CHECK(j["attend"] == "both");
    CHECK(j["index"] == "device");
    CHECK(j["ways"].size() == 4);
    CHECK(j["step_ms"].get<double>() == plan.chosen().time.step_ms);
    CHECK(j["tokens_s"].get<double>() == Approx(1e3 / plan.chosen().time.step_ms));
    CHECK(j["dram_bytes_step"].get<double>() == plan.chosen().traffic.cpu());
    CHECK(j["rates"]["turn_us"] == 50);
  }
}
