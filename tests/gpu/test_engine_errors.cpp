#include <doctest/doctest.h>
#include <fmt/format.h>

#include "decode/fit/placement.h"
#include "gpu/engine_pair.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

/// The error that `body` throws.
template <class Body>
Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  return Error(ErrorKind::internal, "", "nothing thrown");
}

decode::EngineSpec gpu_spec(int64_t total_tokens = 0) {
  return engine_spec({.total_tokens = total_tokens, .device = kGpu});
}

/// What a plan has of the card but for what the driver and this process hold without buffers.
size_t buffers_of(const MemoryPlan& plan) {
  return plan.peak(kGpu) - plan.group_bytes("process", kGpu);
}

decode::ModelFiles files() { return decode::open_model(tiny_model("tiny-2m").string(), 0); }

}  // namespace

TEST_SUITE("gpu/decode/errors") {
  TEST_CASE(
      "a plan beyond run.gpu_memory_limit is an error of kind memory; nothing was allocated") {
    recipe::Run run;
    run.gpu_memory_limit = recipe::ByteSize{1 << 20};
    Engine::plan(files(), gpu_spec());  // the first of a process takes what the driver needs once
    const MemoryPlan plan = Engine::plan(files(), gpu_spec());
    CHECK(takes_nothing([&] {
      (void)Engine::plan(files(), gpu_spec());
      const decode::MemoryLimits limits = decode::memory_limits(run, {kGpu});
      CHECK(limits.gpu_bytes == size_t{1} << 20);
      CHECK_FALSE(limits.fits(plan));
      const Error e = error_of([&] { limits.check(plan); });
      CHECK(e.kind() == ErrorKind::memory);
      CHECK(std::string(e.what()).find("cuda:0") != std::string::npos);
    }));

    // A generous limit is no more than the card has.
    run.gpu_memory_limit = recipe::ByteSize{int64_t{1} << 50};
    CHECK(decode::memory_limits(run, {kGpu}).gpu_bytes <= cuda::device_info(0).total_bytes);
    CHECK(decode::memory_limits(run, {kGpu}).fits(plan));
  }

  TEST_CASE("a plan beyond the card is an error of kind memory") {
    const MemoryPlan plan = Engine::plan(files(), gpu_spec(int64_t{1} << 32));
    CHECK(error_of([&] { decode::memory_limits({}, {kGpu}).check(plan); }).kind() ==
          ErrorKind::memory);
  }

  TEST_CASE("memory that others hold is missed before anything is allocated, or when it is") {
    const decode::EngineSpec spec = gpu_spec(int64_t{1} << 18);
    CHECK(takes_nothing([&] {
      const size_t free_bytes = cuda::device_info(0).free_bytes;
      const size_t buffers = buffers_of(Engine::plan(files(), spec));
      const std::unique_ptr<void, void (*)(void*)> held(cuda::allocate(0, free_bytes - buffers / 2),
                                                        [](void* p) { cuda::free_memory(p); });
      const MemoryPlan plan = Engine::plan(files(), spec);
      const size_t needed = plan.peak(kGpu);
      const decode::MemoryLimits limits = decode::memory_limits({}, {kGpu});
      CHECK_FALSE(limits.fits(plan));
      const Error planned = error_of([&] { limits.check(plan); });
      CHECK(planned.kind() == ErrorKind::memory);
      CHECK(planned.where() == "cuda:0");
      CHECK(planned.message() ==
            fmt::format("needs {} ({}), but other processes leave only {} of {} free",
                        format_bytes(needed), plan.parts(kGpu), format_bytes(limits.gpu_free),
                        format_bytes(limits.gpu_total)));
      CHECK(planned.hint_text().find("nvidia-smi") != std::string::npos);

      const Error found = error_of([&] { Engine(files(), spec); });
      CHECK(found.kind() == ErrorKind::memory);
      CHECK(found.message().starts_with("cannot allocate "));
      CHECK(found.message().ends_with(format_bytes(limits.gpu_total) + " are free"));
    }));
    decode::memory_limits({}, {kGpu}).check(Engine::plan(files(), spec));
    Engine(files(), spec);
  }

  TEST_CASE("an engine takes no more of the card than its plan says") {
    const size_t planned = buffers_of(Engine::plan(files(), gpu_spec()));
    const auto warm = make_engine(tiny_model("tiny-2m"), {.device = kGpu});
    const size_t before = cuda::device_info(0).free_bytes;
    const auto engine = make_engine(tiny_model("tiny-2m"), {.device = kGpu});
    const size_t taken = before - cuda::device_info(0).free_bytes;
    MESSAGE("planned " << format_bytes(planned) << ", taken " << format_bytes(taken));
    // The driver hands out blocks of 2 MiB; small buffers share them.
    CHECK(taken <= planned + (size_t{4} << 20));
    CHECK(buffers_of(engine->memory_plan()) == planned);
  }

  TEST_CASE("more alternatives than a GPU reports are an error of kind recipe, and cost nothing") {
    const EnginePair on = make_pair_of(tiny_model("tiny-2m"));
    const std::vector<decode::Request> one = {request(random_ids(*on.cpu, 20, 1))};
    decode::GenerateSpec spec;
    spec.max_tokens = 5;
    spec.sampler.top_logprobs = 65;
    const Error e = error_of([&] { generate(*on.gpu, one, spec); });
    CHECK(e.kind() == ErrorKind::recipe);
    CHECK(e.where() == "output.top_logprobs");
    spec.sampler.top_logprobs = 64;
    const Generated got = generate(*on.gpu, one, spec);
    CHECK(got.ids == generate(*on.cpu, one, spec).ids);
    CHECK(got.events[0][0].top.size() == 64);
  }

  TEST_CASE("an interruption at any moment leaves the engine usable") {
    int left = 1 << 30;
    decode::EngineSpec spec = gpu_spec();
    spec.interrupted = [&] { return left-- <= 0; };
    Engine engine(files(), spec);
    const int pages = engine.cache().store().free_pages();
    const std::vector<decode::Request> two = {request(random_ids(engine, 40, 2)),
                                              request(random_ids(engine, 90, 3))};
    decode::GenerateSpec generate_spec;
    generate_spec.max_tokens = 6;
    const std::vector<Ids> want = generate(engine, two, generate_spec).ids;
    for (const int polls : {0, 1, 5, 7, 8, 9, 10, 12, 13, 14, 15, 16}) {
      CAPTURE(polls);
      // A rule not seen before: its first step is recorded when the interruption comes.
      decode::GenerateSpec other = generate_spec;
      other.sampler.rule.temperature = 1.0f + static_cast<float>(polls);
      left = polls;
      CHECK(error_of([&] { generate(engine, two, other); }).kind() == ErrorKind::interrupted);
      left = 1 << 30;
      CHECK(engine.cache().store().free_pages() == pages);
      const Generated first = generate(engine, two, other);
      CHECK(first.ids[0].size() == 6);
      CHECK(generate(engine, two, other).ids == first.ids);
      CHECK(generate(engine, two, generate_spec).ids == want);
    }
  }
}
