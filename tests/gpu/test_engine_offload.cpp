#include <doctest/doctest.h>

#include "gpu/engine_pair.h"
#include "speculate/round/rounds.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

/// Random weights of that model's shape: 8 layers, or 2.
std::string shape_of(const std::string& model) {
  return "synthetic:" + (tiny_model(model) / "config.json").string();
}

Ids some_ids(const Engine& engine, size_t n, uint64_t seed) {
  return random_ids(engine, static_cast<int>(n), seed);
}

/// Logits of ragged prompts in chunks, of steps of one token a sequence, and of a ragged step.
std::vector<Row> logits_of_steps(Engine& engine, size_t n_steps) {
  const size_t lengths[] = {1, 37, 300, 64}, last[] = {3, 1, 40, 2};
  Batch batch;
  for (size_t i = 0; i < std::size(lengths); ++i) {
    batch.slots.push_back(engine.cache().create());
    batch.tokens.push_back(some_ids(engine, lengths[i], i));
  }
  std::vector<Row> rows = prefill_all(engine, batch);
  const auto step = [&](uint64_t seed, auto n) {
    for (size_t i = 0; i < batch.tokens.size(); ++i)
      batch.tokens[i] = some_ids(engine, n(i), 10 * seed + i);
    for (Row& row : extend_all(engine, batch)) rows.push_back(std::move(row));
  };
  for (uint64_t s = 1; s <= n_steps; ++s) step(s, [](size_t) { return size_t{1}; });
  step(100, [&](size_t i) { return last[i]; });
  for (const int slot : batch.slots) engine.cache().release(slot);
  return rows;
}

std::vector<decode::Request> four_requests(const Engine& engine) {
  std::vector<decode::Request> all;
  for (size_t i = 0; i < 4; ++i) all.push_back(request(some_ids(engine, 5 + 40 * i, i)));
  return all;
}

decode::GenerateSpec sampled(int n) {
  decode::GenerateSpec spec;
  spec.max_tokens = n;
  spec.sampler = {.rule = {.temperature = 0.8f, .top_k = 50}, .seed = 7, .top_logprobs = 3};
  return spec;
}

bool same_tokens(const Generated& a, const Generated& b) {
  for (size_t i = 0; i < a.events.size(); ++i)
    if (!std::equal(a.events[i].begin(), a.events[i].end(), b.events[i].begin(), b.events[i].end(),
                    [](const auto& x, const auto& y) {
                      return x.id == y.id && x.logprob == y.logprob && x.top == y.top;
                    }))
      return false;
  return a.ids == b.ids;
}

}  // namespace

TEST_SUITE("gpu/decode/offload") {
  TEST_CASE("logits and text have the bits that they have with all layers resident") {
    for (const DType compute : {DType::f32, DType::bf16}) {
      Setup setup{.compute = compute, .chunk = 150, .device = kGpu};
      const auto resident = make_engine(shape_of("tiny-16m"), setup);
      const std::vector<Row> logits = logits_of_steps(*resident, 6);
      const Generated text = generate(*resident, four_requests(*resident), sampled(60));
      for (const int n : {1, 2, 3, 5, 8}) {
        CAPTURE(n);
        setup.n_streamed = n;
        const auto engine = make_engine(shape_of("tiny-16m"), setup);
        CHECK(engine->streamed_bytes() > 0);
        for (int again = 0; again < 10; ++again) {
          CHECK(same(logits_of_steps(*engine, 6), logits));
          CHECK(same_tokens(generate(*engine, four_requests(*engine), sampled(60)), text));
        }
      }
    }
  }

  TEST_CASE("an embedding in host memory gives the same bits") {
    for (const DType compute : {DType::f32, DType::bf16})
      for (const int n : {0, 2}) {
        CAPTURE(n);
        Setup setup{.compute = compute, .chunk = 150, .device = kGpu, .n_streamed = n};
        const auto resident = make_engine(small_model("llama-3.1"), setup);
        setup.host_embedding = true;
        const auto engine = make_engine(small_model("llama-3.1"), setup);
        CHECK(resident->memory_plan().group_bytes("embedding") == 0);
        CHECK(engine->memory_plan().group_bytes("embedding", {}) > 0);
        for (int again = 0; again < 3; ++again) {
          CHECK(same(logits_of_steps(*engine, 6), logits_of_steps(*resident, 6)));
          CHECK(same_tokens(generate(*engine, four_requests(*engine), sampled(40)),
                            generate(*resident, four_requests(*resident), sampled(40))));
        }
      }
  }

  // Norms stay on the GPU while matrices pass through the ring; those of synthetic models are
  // all 1.
  TEST_CASE("a streamed layer of Qwen3 has its own norms, of heads too") {
    for (const DType compute : {DType::f32, DType::bf16})
      for (const std::string model : {"phi4", "qwen3-tied", "qwen3-odd"}) {
        CAPTURE(model);
        Setup setup{.compute = compute, .chunk = 150, .device = kGpu};
        const auto resident = make_engine(small_model(model), setup);
        const std::vector<Row> logits = logits_of_steps(*resident, 6);
        for (const int n : {1, 2, 3}) {
          CAPTURE(n);
          setup.n_streamed = n;
          const auto engine = make_engine(small_model(model), setup);
          CHECK(engine->streamed_bytes() > 0);
          for (int again = 0; again < 3; ++again) CHECK(same(logits_of_steps(*engine, 6), logits));
        }
      }
  }

  TEST_CASE("prompts that go layer by layer leave the same logits, with weights streamed or not") {
    for (const DType compute : {DType::f32, DType::bf16})
      for (const int chunk : {50, 150, 512}) {  // more steps than wait at once, and one
        CAPTURE(chunk);
        Setup setup{.compute = compute, .chunk = chunk, .device = kGpu};
        const auto chunks = make_engine(shape_of("tiny-16m"), setup);
        const std::vector<Row> logits = logits_of_steps(*chunks, 3);
        setup.order = recipe::PrefillOrder::layers;
        for (const int n : {0, 3, 8}) {
          CAPTURE(n);
          setup.n_streamed = n;
          const auto engine = make_engine(shape_of("tiny-16m"), setup);
          for (int again = 0; again < 2; ++again) CHECK(same(logits_of_steps(*engine, 3), logits));
        }
      }
  }

  // Copies take some seventy times what kernels of few rows do here, in the small model far less: a
  // buffer used too early or filled too soon shows in one of them.
  TEST_CASE("the same with layers that take long to copy") {
    Setup setup{.compute = DType::bf16, .chunk = 512, .device = kGpu};
    const std::filesystem::path model = "synthetic:llama-3.2-1b";
    const auto resident = make_engine(model, setup);
    const std::vector<Row> logits = logits_of_steps(*resident, 4);
    const Generated text = generate(*resident, four_requests(*resident), sampled(12));
    for (const int n : {3, 14, 16}) {
      CAPTURE(n);
      setup.n_streamed = n;
      const auto engine = make_engine(model, setup);
      for (int again = 0; again < 2; ++again) {
        CHECK(same(logits_of_steps(*engine, 4), logits));
        CHECK(same_tokens(generate(*engine, four_requests(*engine), sampled(12)), text));
      }
    }
  }

  TEST_CASE("speculation with a target that is streamed writes the same text") {
    const std::vector<int> n_children = {3, 2, 1, 0, 2, 0, 1, 0, 1, 0, 0};
    const speculate::TokenTree tree = speculate::tree_of_children(n_children, "test");
    const auto text_of = [&](int n_streamed) {
      const auto target =
          make_engine(shape_of("tiny-16m"), {.device = kGpu, .n_streamed = n_streamed});
      const auto draft =
          make_engine(shape_of("tiny-2m"), {.device = kGpu, .queue = target->queue()});
      const auto rounds = speculate::model_rounds(*target, *draft, tree);
      decode::GenerateSpec how = sampled(40);
      how.sampler.top_logprobs = 0;
      return generate(*target, four_requests(*target), how, rounds.get());
    };
    const Generated want = text_of(0);
    for (const int n : {3, 8}) CHECK(same_tokens(text_of(n), want));
  }

  TEST_CASE("an interruption within a forward leaves the ring in order") {
    int left = 1 << 30;
    decode::EngineSpec spec = engine_spec({.device = kGpu, .n_streamed = 5});
    spec.interrupted = [&] { return left-- <= 0; };
    Engine engine(decode::open_model(shape_of("tiny-16m"), 0), spec);
    const auto requests = four_requests(engine);
    const Generated want = generate(engine, requests, sampled(6));
    for (int polls = 0; polls < 80; polls += 3) {
      CAPTURE(polls);
      left = polls;
      CHECK_THROWS_AS(generate(engine, requests, sampled(6)), Error);
      left = 1 << 30;
      CHECK(same_tokens(generate(engine, requests, sampled(6)), want));
    }
  }

  TEST_CASE(
      "an engine takes no more of the card than its plan says, while it loads and afterwards") {
    const std::string model = "synthetic:llama-3.2-1b";
    Setup setup{.compute = DType::bf16, .device = kGpu};
    const auto planned = [&](int n) {
      setup.n_streamed = n;
      const MemoryPlan plan = Engine::plan(decode::open_model(model, 0), engine_spec(setup));
      return plan.peak(kGpu) - plan.group_bytes("process", kGpu);  // which is there
    };
    const size_t resident = planned(0), streamed = planned(14);
    CHECK(planned(2) <= resident);
    CHECK(planned(14) < planned(3));
    const auto warm = make_engine(shape_of("tiny-2m"), {.device = kGpu});
    const size_t before = cuda::device_info(0).free_bytes;
    size_t most = 0;
    setup.n_streamed = 14;
    const Engine engine(decode::open_model(model, 0), engine_spec(setup), [&](double) {
      most = std::max(most, before - cuda::device_info(0).free_bytes);
    });
    const size_t taken = before - cuda::device_info(0).free_bytes;
    MESSAGE("planned " << format_bytes(streamed) << ", taken " << format_bytes(taken)
                       << ", while loading " << format_bytes(most));
    // Each of some sixty buffers is rounded up to 2 MiB.
    CHECK(taken <= streamed + (size_t{128} << 20));
    CHECK(most <= taken);
    CHECK(engine.memory_plan().group_bytes("weights", {}) == engine.streamed_bytes());
  }
}
