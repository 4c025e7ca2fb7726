#include <doctest/doctest.h>

#include "base/parallel.h"
#include "kv/policies/prompt_tables.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;

namespace {

kv::Geometry llama_8b() {
  return {.n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .dtype = DType::bf16};
}

MemoryPlan plan_of(const Cache& cache, const kv::Geometry& g, int64_t n, int seqs = 1) {
  MemoryPlan plan;
  kv::Cache::plan({.geometry = g,
                   .max_seqs = seqs,
                   .max_tokens = static_cast<int>(n),
                   .total_tokens = n * seqs,
                   .max_rows = 64,
                   .policies = {cache}},
                  plan);
  return plan;
}

size_t bytes_of(const MemoryPlan& plan, const std::string& name) {
  const PlanItem* item = plan.find(name);
  CAPTURE(name);
  REQUIRE(item != nullptr);
  return item->bytes;
}

/// Bytes of a policy that grow with the text: not the projections, nor what builds tables.
size_t index_bytes(const MemoryPlan& plan) {
  size_t sum = 0;
  for (const PlanItem& item : plan.items())
    if (item.name.starts_with("index/") && !item.name.ends_with(".projections") &&
        !item.name.ends_with(".build_scratch"))
      sum += item.bytes;
  return sum;
}

/// The Error that planning a cache throws.
std::string planning_error(const Cache& cache) {
  try {
    plan_of(cache, llama_8b(), 4096);
  } catch (const Error& e) {
    return std::to_string(exit_status(e.kind())) + " " + e.what();
  }
  return "none";
}

}  // namespace

TEST_SUITE("kv/sparse_memory") {
  TEST_CASE("hash tables, norms, centers and projections to the byte") {
    struct Shape {
      int bits, tables, max_tokens, seqs;
      std::vector<int> dense;
      size_t capacity, blocks, layers;
    };
    const size_t kHeads = 8, kDim = 128;
    for (const Shape& s :
         {Shape{10, 150, 98304, 1, {0, 16}, 32768, 3, 30}, Shape{8, 75, 1028, 1, {}, 960, 1, 32},
          Shape{12, 33, 5000, 3, {0}, 4992, 3, 31}, Shape{16, 1, 40000, 2, {1}, 32768, 4, 31}}) {
      CAPTURE(s.tables);
      Cache cache = sparse_cache(CacheKind::lsh, 4, 64);
      cache.dense_layers = s.dense;
      cache.lsh.bits = s.bits;
      cache.lsh.tables = s.tables;
      const MemoryPlan plan = plan_of(cache, llama_8b(), s.max_tokens, s.seqs);
      const auto tables = static_cast<size_t>(s.tables), offsets = (size_t{1} << s.bits) + 1;
      CHECK(bytes_of(plan, "index/lsh.tables") ==
            2 * tables * (s.capacity + offsets) * s.blocks * s.layers * kHeads);
      CHECK(bytes_of(plan, "index/lsh.norms") == 4 * s.capacity * s.blocks * s.layers * kHeads);
      CHECK(bytes_of(plan, "index/lsh.centers") ==
            4 * static_cast<size_t>(s.seqs) * s.layers * kHeads * kDim);
      const size_t columns = (tables + 63) / 64 * 64 * static_cast<size_t>(s.bits);
      CHECK(bytes_of(plan, "index/lsh.projections") == 4 * kDim * columns);
    }
  }

  TEST_CASE("a GPU that makes tables of prompts has room for three of a block and KV head") {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    for (const int seqs : {1, 5}) {
      const kv::Bounds bounds{.geometry = llama_8b(),
                              .max_seqs = seqs,
                              .max_tokens = 98304,
                              .total_tokens = int64_t{98304} * seqs,
                              .hosted = true,
                              .prompts = kGpu};
      const kv::TokenIndex index(
          {.max_seqs = seqs, .max_tokens = bounds.max_tokens, .total_tokens = bounds.total_tokens});
      const kv::PromptTables tables({.bits = 10, .tables = 180}, bounds, index,
                                    {.n_sparse = 30, .n_kv_heads = 8}, kGpu);
      MemoryPlan plan;
      tables.plan(plan, "prompts");
      CHECK(bytes_of(plan, "prompts.tables") == size_t{3} * 2 * 180 * (32768 + 1025));
      CHECK(bytes_of(plan, "prompts.norms") == size_t{3} * 4 * 32768);
      for (const PlanItem& item : plan.items()) CHECK(item.device == kGpu);
      CHECK(plan.peak(kGpu) <= size_t{40} << 20);
    }
  }

  TEST_CASE("codes and page bounds to the byte") {
    Cache cache = sparse_cache(CacheKind::hybrid, 4, 64);
    cache.dense_layers = {0, 16};
    const size_t keys = size_t{32768} * 3 * 30 * 8;
    for (const size_t bits : {1, 2, 3}) {
      cache.hybrid.bits = static_cast<int>(bits);
      const MemoryPlan plan = plan_of(cache, llama_8b(), 98304);
      CHECK(bytes_of(plan, "index/hybrid.codes") == (128 / 8 + 2) * keys);
      if (bits > 1)
        CHECK(bytes_of(plan, "index/hybrid.low_bits") == (bits - 1) * 128 / 8 * keys);
      else
        CHECK(plan.find("index/hybrid.low_bits") == nullptr);
      // Means in bf16 and centers in 8 bits of 64 clusters and their unit, and each key's cluster.
      CHECK(bytes_of(plan, "index/hybrid.value_means") == size_t{30} * 8 * (64 * 128 * 3 + 16));
      CHECK(bytes_of(plan, "index/hybrid.value_clusters") == keys);
      CHECK(bytes_of(plan, "index/hybrid.frames") == size_t{30} * 8 * (2 * 128 + 2) * 4);
    }
    cache.hybrid.tail = recipe::HybridTail::means;
    const MemoryPlan runs = plan_of(cache, llama_8b(), 98304);
    CHECK(bytes_of(runs, "index/hybrid.value_means") == 2 * 128 * keys / 256);
    CHECK(runs.find("index/hybrid.value_clusters") == nullptr);

    Cache quest = sparse_cache(CacheKind::quest, 4, 64);
    for (const int page : {16, 32, 64}) {
      quest.quest.page = page;
      const size_t blocks = 98304 / 4096, pages = 4096 / static_cast<size_t>(page);
      CHECK(bytes_of(plan_of(quest, llama_8b(), 98304), "index/quest.page_bounds") ==
            blocks * pages * 2 * 128 * 4 * 32 * 8);
    }
  }

  TEST_CASE("96Ki tokens of the 8B model: codes take a fifth of the tables' bytes") {
    Cache lsh = sparse_cache(CacheKind::lsh, 4, 64),
          hybrid = sparse_cache(CacheKind::hybrid, 4, 64);
    for (Cache* cache : {&lsh, &hybrid}) cache->dense_layers = Cache::default_dense_layers();
    const size_t tables = index_bytes(plan_of(lsh, llama_8b(), 98304));
    CHECK(index_bytes(plan_of(hybrid, llama_8b(), 98304)) <= tables / 5);
    CHECK(tables > size_t{7'000'000'000});
    CHECK(tables < size_t{7'700'000'000});
  }

  // Sizes beyond 32 bits.
  TEST_CASE("large batches are counted in 64 bits") {
    Cache lsh = sparse_cache(CacheKind::lsh, 4, 64);
    const MemoryPlan one = plan_of(lsh, llama_8b(), 98304),
                     many = plan_of(lsh, llama_8b(), 98304, 40);
    CHECK(bytes_of(many, "index/lsh.tables") == 40 * bytes_of(one, "index/lsh.tables"));
    CHECK(bytes_of(many, "index/lsh.norms") == 40 * bytes_of(one, "index/lsh.norms"));
  }

  TEST_CASE("a model without sparse layers plans no index") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid, CacheKind::quest}) {
      Cache cache = sparse_cache(kind);
      cache.dense_layers = {0, 1};
      const MemoryPlan plan = plan_of(cache, PolicyRig::Shape{}.geometry, 500);
      for (const PlanItem& item : plan.items()) {
        CAPTURE(item.name);
        CHECK((!item.name.ends_with(".tables") && !item.name.ends_with(".codes") &&
               !item.name.ends_with(".page_bounds")));
      }
      PolicyRig rig({}, {cache}, cone_data(32)), full({}, {Cache{}}, cone_data(32));
      const Ids prompt = tokens(0, 100), after = tokens(500, 3);
      CHECK(same(rig.extend_each(rig.sequence(prompt), after),
                 full.extend_each(full.sequence(prompt), after)));
    }
  }

  TEST_CASE("dense layers beyond the model are an error unless they are the default") {
    for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid, CacheKind::quest,
                                 CacheKind::topk, CacheKind::oracle_sampling}) {
      Cache cache = sparse_cache(kind);
      cache.dense_layers = Cache::default_dense_layers();
      CHECK(planning_error(cache) == "none");
      cache.dense_layers = {0, 32};
      CHECK(planning_error(cache) ==
            "3 cache.dense_layers: names layer 32, but the model has layers 0 to 31");
      cache.dense_layers = {31};
      CHECK(planning_error(cache) == "none");
    }
  }
}
