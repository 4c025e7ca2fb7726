#include <doctest/doctest.h>

#include "engine_runs.h"
#include "error_text.h"

using namespace tandem;
using namespace tandem::test;

namespace {

recipe::Cache lists() {
  recipe::Cache c;
  c.kind = recipe::CacheKind::topk;
  return c;
}

}  // namespace

TEST_SUITE("decode/interrupt") {
  TEST_CASE("a forward stops within a layer, commits nothing, and the engine goes on afterwards") {
    int polls_left = -1;  // below 0: no interruption
    decode::EngineSpec spec = engine_spec({.caches = {{}, streaming(4, 32), lists()}});
    spec.interrupted = [&] { return polls_left >= 0 && polls_left-- == 0; };
    decode::Engine engine(decode::open_model(small_model("llama-3.1").string(), 0), spec);
    kv::Cache& cache = engine.cache();
    const Ids ids = random_ids(engine, 150, 1), more = random_ids(engine, 90, 2),
              after = random_ids(engine, 6, 3);
    for (const int policy : {0, 1, 2}) {
      const int plain = cache.create(policy), slot = cache.create(policy);
      for (const int s : {plain, slot}) prefill(engine, s, ids);
      const std::string bytes = committed_bytes(cache, slot);
      const int n_layers = engine.config().n_layers;
      // The last poll of a forward lies in its last layer.
      for (const int polls : {0, 1, 2, 4, 5 * n_layers - 1}) {
        CAPTURE(policy);
        CAPTURE(polls);
        polls_left = polls;
        CHECK(kind_of([&] { prefill(engine, slot, more); }) == ErrorKind::interrupted);
        polls_left = polls;
        CHECK(kind_of([&] { extend(engine, slot, more); }) == ErrorKind::interrupted);
        CHECK(polls_left == -1);
        CHECK(cache.length(slot) == 150);
        CHECK(committed_bytes(cache, slot) == bytes);
      }
      CHECK(same(extend_each(engine, slot, after), extend_each(engine, plain, after)));
      CHECK(committed_bytes(cache, slot) == committed_bytes(cache, plain));
      cache.release(plain);
      cache.release(slot);
    }
  }

  TEST_CASE("loading stops between pieces of a matrix, and tells how far it is") {
    decode::EngineSpec spec = engine_spec({});
    std::vector<double> shares;
    const auto load = [&] {
      decode::Engine(decode::open_model(tiny_model("tiny-2m").string(), 0), spec,
                     [&](double share) { shares.push_back(share); });
    };
    load();
    const size_t pieces = shares.size();
    CHECK(pieces > 32);  // the head alone is 8192 rows
    CHECK(std::is_sorted(shares.begin(), shares.end()));
    CHECK(shares.back() == 1.0);
    for (const size_t stop : {size_t{0}, size_t{1}, pieces / 2, pieces - 1}) {
      CAPTURE(stop);
      shares.clear();
      spec.interrupted = [&] { return shares.size() == stop; };
      CHECK(kind_of(load) == ErrorKind::interrupted);
      CHECK(shares.size() == stop);
    }
  }
}
