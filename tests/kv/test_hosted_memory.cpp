// What texts in host memory need on the device: near keys of those that are extended, and one layer
// of those that go through the layers together.
#include <doctest/doctest.h>

#include "error_text.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::CacheKind;
using recipe::CachePlace;

namespace {

constexpr int kRecent = 16, kPrompt = 700, kAppended = 40;

recipe::Cache hosted(CacheKind kind, CachePlace place = CachePlace::host) {
  recipe::Cache c;
  if (kind != CacheKind::full) c = sparse_cache(kind, 4, kRecent);
  c.kind = kind;
  c.lsh = {.bits = 4, .tables = 24};
  c.place = place;
  return c;
}

PolicyRig::Shape shape_of(int max_extended, int max_appended) {
  return {.max_seqs = 5,
          .max_extended = max_extended,
          .max_tokens = 1024,
          .max_appended = max_appended,
          .max_rows = 256,
          .max_draft_rows = 8};
}

MemoryPlan plan_of(const kv::Cache::Spec& spec) {
  MemoryPlan plan;
  kv::Cache::plan(spec, plan);
  return plan;
}

}  // namespace

TEST_SUITE("kv/hosted_memory") {
  TEST_CASE("forks of prompts that are not extended themselves take turns in the room of two") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid, CacheKind::full}) {
      CAPTURE(recipe::yaml_text(kind));
      PolicyRig one(shape_of(0, 0), {hosted(kind, CachePlace::device)}, cone_data(32)),
          split(shape_of(2, kAppended), {hosted(kind)}, cone_data(32));
      for (int i = 0; i < 2; ++i)
        REQUIRE(split.sequence(tokens(5000 * i, kPrompt)) ==
                one.sequence(tokens(5000 * i, kPrompt)));
      for (int round = 0; round < 3; ++round) {
        std::vector<int> forks;
        for (int prompt = 0; prompt < 2; ++prompt) {
          forks.push_back(one.cache.fork(prompt, 0));
          REQUIRE(split.cache.fork(prompt, 0) == forks.back());
        }
        for (int i = 0; i < kAppended; ++i)
          for (const int fork : forks) {
            const Ids id = tokens(9000 + 100 * fork + i, 1);
            CHECK(max_difference(split.extend(fork, id), one.extend(fork, id)) <=
                  (kind == CacheKind::full ? 1e-5 : 0.0));
          }
        for (PolicyRig* rig : {&one, &split})
          for (const int fork : forks) rig->cache.release(fork);
      }
    }
  }

  TEST_CASE("a sequence too many is an error of kind memory, and goes on when there is room") {
    PolicyRig rig(shape_of(1, kAppended), {hosted(CacheKind::hybrid)}, cone_data(32));
    for (int i = 0; i < 5; ++i) REQUIRE(rig.sequence(tokens(5000 * i, kPrompt)) == i);
    // Room for one that adds a step's rows, 9 pages, is room for four with two each.
    const Ids added = tokens(9000, kAppended);
    for (int slot = 0; slot < 4; ++slot) rig.extend(slot, added);
    CHECK(kind_of([&] { rig.extend(4, added); }) == ErrorKind::memory);
    CHECK(rig.cache.length(4) == kPrompt);
    rig.cache.release(2);
    const std::vector<Row> late = rig.extend(4, added);
    PolicyRig fresh(shape_of(1, kAppended), {hosted(CacheKind::hybrid)}, cone_data(32));
    CHECK(late == fresh.extend(fresh.sequence(tokens(5000 * 4, kPrompt)), added));
  }

  TEST_CASE("near keys: of those that are extended, with what they add at most") {
    kv::Cache::Spec spec{.geometry = {.n_layers = 2,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 32,
                                      .dtype = DType::f32},
                         .max_seqs = 8,
                         .max_tokens = 65536,
                         .total_tokens = 8 * 65536,
                         .max_rows = 512,
                         .max_extend_rows = 8,
                         .policies = {hosted(CacheKind::hybrid)}};
    const auto near_pages = [&] {
      constexpr size_t kPageBytes = 2 * size_t{kPageTokens} * 2 * 32 * sizeof(float);
      return plan_of(spec).find("kv/near/k")->bytes / kPageBytes;
    };
    const size_t all = near_pages();
    spec.max_extended = 4;
    CHECK(near_pages() == all / 2);
    spec.max_appended = 64;
    // 4 sinks, 16 recent, the 64 that an index begins with, 64 more and a step's rows: three pages,
    // and two at the ends.
    CHECK(near_pages() == 4 * 5);
    spec.max_appended = 1 << 20;
    CHECK(near_pages() == all / 2);
  }

  TEST_CASE("the layer of prompts: of the longest text, or a forward's rows, not of all texts") {
    kv::Cache::Spec spec{.geometry = {.n_layers = 2,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 32,
                                      .dtype = DType::f32},
                         .max_seqs = 4,
                         .max_tokens = 1000,
                         .total_tokens = 4000,
                         .max_rows = 256,
                         .policies = {hosted(CacheKind::lsh)}};
    constexpr size_t kPageBytes = size_t{kPageTokens} * 2 * 32 * sizeof(float);
    CHECK(plan_of(spec).find("kv/prompt/k")->bytes == (16 + 4) * kPageBytes);
    spec.max_rows = 2048;
    CHECK(plan_of(spec).find("kv/prompt/k")->bytes == (32 + 4) * kPageBytes);
    spec.max_rows = 8192;  // no more than there are
    CHECK(plan_of(spec).find("kv/prompt/k")->bytes == (63 + 8) * kPageBytes);
  }

  TEST_CASE("texts beyond the layer of prompts are refused together, and read one by one") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid, CacheKind::full}) {
      CAPTURE(recipe::yaml_text(kind));
      PolicyRig rig(shape_of(0, 0), {hosted(kind)}, cone_data(32));
      CHECK(rig.cache.residence().facts().prompt_pages == 16 + 5);
      const int a = rig.cache.create(0), b = rig.cache.create(0);
      const std::vector<kv::SeqRows> both[] = {{{a, 256}}, {{a, 256}}, {{a, 256}},
                                               {{b, 256}}, {{b, 256}}, {{b, 256}}};
      CHECK(kind_of([&] { rig.cache.begin_prompts(both); }) == ErrorKind::memory);
      CHECK(rig.cache.length(a) == 0);
      CHECK(rig.cache.length(b) == 0);
      for (const int slot : {a, b, rig.cache.create(0)}) {
        const Ids ids = tokens(3000 * slot, 1000);
        rig.prefill(slot, ids);
        PolicyRig fresh(shape_of(0, 0), {hosted(kind)}, cone_data(32));
        const int alone = fresh.sequence(ids);
        CHECK(rig.extend(slot, tokens(9000, 1)) == fresh.extend(alone, tokens(9000, 1)));
      }
    }
  }
}
