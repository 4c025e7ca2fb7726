// Keys in host memory that the system does not pin, or pins only in pieces: the same logits, or a
// refusal that says what to do.
#include <doctest/doctest.h>

#include <cstdlib>

#include "error_text.h"
#include "gpu/engine_pair.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Attend;

namespace {

/// Ranges beyond so many bytes are not pinned while it lives.
class PinLimit {
 public:
  explicit PinLimit(size_t bytes) { ::setenv(kName, std::to_string(bytes).c_str(), 1); }
  ~PinLimit() { ::unsetenv(kName); }

 private:
  static constexpr const char* kName = "TANDEM_PIN_LIMIT";
};

Setup setup_of(recipe::CacheKind kind, Attend attend) {
  recipe::Cache c;
  c.kind = kind;
  c.recent = {64};
  c.place = recipe::CachePlace::host;
  c.attend = attend;
  if (attend == Attend::cpu) c.index = recipe::IndexPlace::host;
  return {.chunk = 512, .max_seqs = 2, .max_tokens = 2000, .caches = {c}, .device = kGpu};
}

std::unique_ptr<decode::Engine> engine_of(recipe::CacheKind kind, Attend attend) {
  return make_engine(tiny_model("tiny-16m"), setup_of(kind, attend));
}

/// Logits after a prompt, after each token of a text that fills pages, after going back, and after
/// another prompt's end.
std::vector<Row> run(decode::Engine& engine) {
  const Ids ids = random_ids(engine, 1300, 1), after = random_ids(engine, 100, 2);
  const int slot = engine.cache().create();
  std::vector<Row> rows = {prefill(engine, slot, ids)};
  for (Row& row : extend_each(engine, slot, after)) rows.push_back(std::move(row));
  engine.cache().truncate(slot, 1000);
  rows.push_back(extend(engine, slot, std::span(after).first(3)));
  rows.push_back(prefill(engine, slot, std::span(ids).first(600)));
  rows.push_back(extend(engine, slot, std::span(after).first(1)));
  engine.cache().release(slot);
  return rows;
}

}  // namespace

TEST_SUITE("gpu/decode/pinning") {
  TEST_CASE("refused: keys that the CPU reads are copied by staging, and the engine says so") {
    for (const recipe::CacheKind kind : {recipe::CacheKind::lsh, recipe::CacheKind::hybrid}) {
      CAPTURE(recipe::yaml_text(kind));
      const auto pinned = engine_of(kind, Attend::cpu);
      CHECK(pinned->cache().residence().facts().why_unpinned.empty());
      const PinLimit limit(0);
      const auto staged = engine_of(kind, Attend::cpu);
      CHECK(staged->cache().residence().facts().why_unpinned.find("cannot pin host memory") !=
            std::string::npos);
      CHECK(run(*staged) == run(*pinned));
    }
  }

  TEST_CASE("refused: keys that the GPU reads over the link need it") {
    const PinLimit limit(0);
    const auto load = [] { (void)engine_of(recipe::CacheKind::hybrid, Attend::gpu); };
    CHECK(kind_of(load) == ErrorKind::memory);
    CHECK(error_text(load).find("of pinned memory for the GPU to read, which the system refused") !=
          std::string::npos);
    CHECK(hint_text(load).find("set cache.attend cpu and cache.index host") != std::string::npos);
  }

  TEST_CASE("ranges as long as all layers refused: they are pinned layer by layer") {
    const auto whole = engine_of(recipe::CacheKind::hybrid, Attend::gpu);
    const PlanItem* const keys = whole->memory_plan().find("kv/host/k");
    REQUIRE(keys != nullptr);
    const PinLimit limit(keys->bytes - 1);
    const auto pieces = engine_of(recipe::CacheKind::hybrid, Attend::gpu);
    CHECK(pieces->cache().residence().facts().why_unpinned.empty());
    CHECK(run(*pieces) == run(*whole));
  }
}
