// Faults in the midst of steps over keys in host memory: each ends in one error, nothing hangs, and
// the engine is as it was.
#include <doctest/doctest.h>

#include <optional>
#include <stdexcept>

#include "base/parallel.h"
#include "decode/fit/placement.h"
#include "error_text.h"
#include "gpu/engine_pair.h"
#include "gpu/gpu_lost.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Attend;
using recipe::CacheKind;

namespace {

recipe::Cache hosted(CacheKind kind, Attend attend) {
  recipe::Cache c;
  c.kind = kind;
  c.recent = {64};
  c.place = recipe::CachePlace::host;
  c.attend = attend;
  if (kind == CacheKind::full) return c;
  c.index = attend == Attend::cpu ? recipe::IndexPlace::host : recipe::IndexPlace::device;
  if (attend == Attend::both) c.cpu_share = 0.4;
  return c;
}

/// Every way in which keys in host memory are attended.
std::vector<recipe::Cache> ways() {
  return {hosted(CacheKind::lsh, Attend::cpu),    hosted(CacheKind::hybrid, Attend::cpu),
          hosted(CacheKind::hybrid, Attend::gpu), hosted(CacheKind::hybrid, Attend::both),
          hosted(CacheKind::full, Attend::cpu),   hosted(CacheKind::full, Attend::gpu)};
}

decode::EngineSpec spec_of(const recipe::Cache& cache) {
  return engine_spec(
      {.chunk = 512, .max_seqs = 3, .max_tokens = 1600, .caches = {cache}, .device = kGpu});
}
decode::ModelFiles files() { return decode::open_model(tiny_model("tiny-16m").string(), 0); }

/// Texts of different lengths, so that a step is two micro-batches where the host serves it.
std::vector<decode::Request> requests_of(const decode::Engine& engine) {
  std::vector<decode::Request> requests;
  for (const int n : {900, 300, 1200})
    requests.push_back(request(random_ids(engine, n, static_cast<uint64_t>(n))));
  return requests;
}

decode::GenerateSpec twenty_tokens() {
  decode::GenerateSpec how;
  how.max_tokens = 20;
  return how;
}

/// Generates, and calls `then` at the 12th token.
void generate_until(decode::Engine& engine, const std::vector<decode::Request>& requests,
                    const std::function<void()>& then) {
  int n = 0;
  decode::GenerateEvents events;
  events.on_token = [&](const decode::TokenEvent&) {
    if (++n == 12) then();
  };
  decode::generate(engine, requests, twenty_tokens(), events);
}

class Threads {
 public:
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(before_); }

 private:
  int before_ = max_threads();
};

}  // namespace

TEST_SUITE("gpu/decode/faults") {
  TEST_CASE("a GPU that is lost in the midst of texts: one error with a remedy") {
    for (const recipe::Cache& cache : ways()) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.attend));
      const auto check = [](const auto& run) {
        try {
          run();
          FAIL("nothing was thrown");
        } catch (const Error& e) {
          CHECK(e.kind() == ErrorKind::device);
          CHECK(e.message().find("the GPU is lost") != std::string::npos);
          CHECK(e.hint_text().find("use another with --device cuda:N") != std::string::npos);
        }
      };
      // The engine ends while it is lost.
      for (const int waits : {0, 1}) {
        CAPTURE(waits);
        check([&] {
          std::optional<GpuLost> lost;
          decode::Engine engine(files(), spec_of(cache));
          generate_until(engine, requests_of(engine), [&] { lost.emplace(waits); });
        });
        check([&] {
          decode::Engine engine(files(), spec_of(cache));
          const Ids prompt = random_ids(engine, 1000, 5);
          const GpuLost lost(waits);
          prefill(engine, engine.cache().create(), prompt);
        });
      }
      decode::Engine engine(files(), spec_of(cache));
      CHECK(generate(engine, requests_of(engine), twenty_tokens()).ids.size() == 3);
    }
  }

  TEST_CASE("host work that throws in the midst of a step: the exception comes out of it") {
    for (const recipe::Cache& cache : ways()) {
      if (cache.attend == Attend::gpu) continue;  // no host work
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.attend));
      int polls = -1;  // until it throws; below 0: never
      decode::EngineSpec spec = spec_of(cache);
      spec.interrupted = [&] {
        if (polls >= 0 && polls-- == 0) throw std::runtime_error("host work failed");
        return false;
      };
      decode::Engine engine(files(), spec);
      const std::vector<decode::Request> requests = requests_of(engine);
      const std::vector<Ids> whole = generate(engine, requests, twenty_tokens()).ids;
      const int pages = engine.cache().store().free_pages();
      for (const int n : {0, 1, 2, 3, 8, 9}) {
        CAPTURE(n);
        CHECK_THROWS_WITH_AS(generate_until(engine, requests, [&] { polls = n; }),
                             "host work failed", std::runtime_error);
        polls = -1;
        CHECK(engine.cache().store().free_pages() == pages);
      }
      // Not recorded.
      const Ids prompt = random_ids(engine, 1000, 5), after = random_ids(engine, 2, 6);
      const int slot = engine.cache().create();
      prefill(engine, slot, prompt);
      const Row want = extend(engine, slot, std::span(after).first(1));
      engine.cache().truncate(slot, 1000);
      for (const int n : {0, 2}) {
        polls = n;
        CHECK_THROWS_WITH_AS(extend(engine, slot, std::span(after).first(1)), "host work failed",
                             std::runtime_error);
        polls = -1;
        engine.cache().truncate(slot, 1000);
        CHECK(extend(engine, slot, std::span(after).first(1)) == want);
        engine.cache().truncate(slot, 1000);
      }
      engine.cache().release(slot);
      CHECK(generate(engine, requests, twenty_tokens()).ids == whole);
    }
  }

  TEST_CASE("f32: one CPU thread, and more threads than cores, write the same text") {
    for (const recipe::Cache& cache : ways()) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.attend));
      const auto text = [&] {
        decode::Engine engine(files(), spec_of(cache));
        return generate(engine, requests_of(engine), twenty_tokens()).ids;
      };
      const std::vector<Ids> want = text();
      for (const int n : {1, 2, usable_cores() + 5}) {
        CAPTURE(n);
        const Threads threads(n);
        CHECK(text() == want);
      }
    }
  }

  TEST_CASE("host memory that does not suffice is reported before anything is allocated") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid}) {
      const MemoryPlan plan = decode::Engine::plan(files(), spec_of(hosted(kind, Attend::cpu)));
      recipe::Run run;
      run.host_memory_limit = recipe::ByteSize{static_cast<int64_t>(plan.peak({})) - 1};
      const auto check = [&] { decode::memory_limits(run, {kGpu}).check(plan); };
      CHECK(takes_nothing([&] {
        CHECK(kind_of(check) == ErrorKind::memory);
        CHECK(error_text(check).find("cpu: needs ") == 0);
        CHECK(hint_text(check).find("raise run.host_memory_limit") != std::string::npos);
      }));
      run.host_memory_limit = recipe::ByteSize{static_cast<int64_t>(plan.peak({}))};
      CHECK_NOTHROW(check());
    }
  }
}
