// Keys in host memory of eight bits. Where data are such that eight bits hold them, everything is
// as with keys of f32 in one place but for the order of sums; elsewhere the error is bounded.
#include <doctest/doctest.h>

#include <cmath>

#include "decode/state.h"
#include "kernels/eight_bit_case.h"
#include "kv/fill_random.h"
#include "policy_rig.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using recipe::CacheKind;
using recipe::CachePlace;
using recipe::HostDtype;

namespace {

constexpr int kRecent = 16, kDim = 32;

struct Kind {
  std::string name;
  recipe::Cache cache;
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid}) {
    recipe::Cache c = sparse_cache(kind, 4, kRecent);
    c.lsh = {.bits = 4, .tables = 24};
    c.dense_layers = {1};
    all.push_back({recipe::yaml_text(kind), c});
  }
  all.push_back(all[1]);
  all.back().name = "hybrid sampled";
  all.back().cache.hybrid.tail = recipe::HybridTail::sampled;
  all.push_back(all[1]);
  all.back().name = "hybrid shared";
  all.back().cache.hybrid.group = recipe::HybridGroup::shared;
  return all;
}

recipe::Cache in_eight_bits(recipe::Cache cache) {
  cache.place = CachePlace::host;
  cache.host_dtype = HostDtype::int8;
  return cache;
}

/// Keys and values that eight bits hold.
TokenData rounded(TokenData data, DType dtype) {
  return
      [data = std::move(data), dtype](Part part, int32_t token, int layer, int head, float* out) {
        data(part, token, layer, head, out);
        if (part == Part::q) return;
        round_to_eight_bits(out, dtype, kDim);
      };
}

PolicyRig rig_of(const recipe::Cache& cache, const TokenData& data, DType dtype = DType::f32) {
  return {
      {.geometry = {.n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = kDim, .dtype = dtype},
       .max_seqs = 3,
       .max_tokens = 4096,
       .max_rows = 512},
      {cache},
      data};
}

/// The same calls on keys of f32 in one place, and of eight bits in host memory.
struct Both {
  explicit Both(const recipe::Cache& cache,
                const TokenData& data = rounded(cone_data(kDim), DType::f32),
                DType dtype = DType::f32)
      : one(rig_of(cache, data, dtype)), split(rig_of(in_eight_bits(cache), data, dtype)) {}

  PolicyRig one, split;
  double worst = 0;

  int sequence(const Ids& ids) {
    const int slot = one.sequence(ids);
    REQUIRE(split.sequence(ids) == slot);
    return slot;
  }
  void extend(int slot, const Ids& ids) {
    const std::vector<Row> want = one.extend(slot, ids), got = split.extend(slot, ids);
    REQUIRE(all_finite(got));
    worst = worse(worst, max_difference(want, got));
  }
  void each(int slot, int first, int n) {
    for (int i = 0; i < n; ++i) extend(slot, tokens(first + i, 1));
  }
  void append(int slot, int first, int n) {
    for (int done = 0; done < n; done += 100) {
      const Ids ids = tokens(first + done, std::min(100, n - done));
      one.append(slot, ids);
      split.append(slot, ids);
    }
  }
  void check_same_choice() const {
    const kv::KeyUsage &a = one.cache.usage(0), &b = split.cache.usage(0);
    CHECK(a.selected == b.selected);
    CHECK(a.fixed == b.fixed);
  }
};

/// Sums in another order: of scores of some 20, then of a thousand values below 1.
constexpr double kF32 = 5e-5;

/// Numbers and scales of the first tokens of a text in host memory.
std::string far_bytes(const kv::Cache& cache, int slot, int n) {
  std::string bytes;
  const kv::Geometry& g = cache.geometry();
  for (const int layer : {0, 2}) {
    const kv::PagedStore& far = cache.whole_store(layer);
    REQUIRE(far.spec().eight_bit);
    for (int t = 0; t < n; ++t)
      for (int head = 0; head < g.n_kv_heads; ++head) {
        const int64_t row =
            (int64_t{far.page(slot, t / kPageTokens)} * g.n_kv_heads + head) * kPageTokens +
            t % kPageTokens;
        for (const Tensor& pool : {far.k(layer), far.v(layer)})
          bytes.append(static_cast<const char*>(pool.raw()) + row * kDim, kDim);
        bytes.append(reinterpret_cast<const char*>(far.scales(layer) + 2 * row), 2 * sizeof(float));
      }
  }
  return bytes;
}

/// Keys and values of a text in all layers, as an index reads them.
std::vector<Row> rows_of(const kv::Cache& cache, int slot, int n) {
  std::vector<Row> rows;
  const kv::Geometry& g = cache.geometry();
  for (int layer = 0; layer < g.n_layers; ++layer)
    for (int head = 0; head < g.n_kv_heads; ++head) {
      const kv::PagedStore& store = cache.whole_store(layer);
      for (const kv::KeyRows& keys :
           {store.keys(layer, slot, head), store.values(layer, slot, head)})
        for (int t = 0; t < n; ++t) keys.read(t, rows.emplace_back(g.head_dim).data());
    }
  return rows;
}

kv::Cache::Spec plan_spec(const recipe::Cache& cache, DType dtype, Device device = {}) {
  return {
      .geometry = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = kDim, .dtype = dtype},
      .max_tokens = 65536,
      .total_tokens = 65536,
      .max_rows = 512,
      .policies = {cache},
      .device = device,
      .multiprocessors = 132,
      .block_shared_bytes = 232448};
}

}  // namespace

TEST_SUITE("kv/hosted_eight_bit") {
  TEST_CASE("f32: rows that eight bits hold are attended as in f32, at any length") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind.cache);
      const int slot = b.sequence(tokens(0, 700));
      b.each(slot, 700, 70);
      b.append(slot, 770, 1300);  // the index grows
      b.each(slot, 2070, 3);
      b.extend(slot, tokens(2073, 150));
      for (const int n : {1, kRecent + 4, kPageTokens, 200}) {
        const int other = b.sequence(tokens(5000, n));
        b.each(other, 5000 + n, 5);
        b.append(other, 6000, 1200);
        b.each(other, 7200, 2);
        b.one.cache.release(other);
        b.split.cache.release(other);
      }
      CHECK(b.worst <= kF32);
      b.check_same_choice();
    }
  }

  TEST_CASE("f32: prompts that go on, forks, texts that are cut anywhere, rows that run again") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind.cache);
      const int slot = b.sequence(tokens(0, 300));
      b.each(slot, 300, 5);
      b.append(slot, 305, 1200);
      for (PolicyRig* rig : {&b.one, &b.split}) rig->prefill(slot, tokens(1505, 400));
      b.each(slot, 1905, 3);
      const int child = b.one.cache.fork(slot, b.one.cache.readers_of(slot));
      REQUIRE(b.split.cache.fork(slot, b.split.cache.readers_of(slot)) == child);
      for (int i = 0; i < 80; ++i) {
        b.extend(child, tokens(8000 + i, 1));
        b.extend(slot, tokens(9000 + i, 1));
      }
      for (const int n : {1900, 1200, 640, 600, 70, 3}) {
        CAPTURE(n);
        for (PolicyRig* rig : {&b.one, &b.split}) rig->cache.truncate(child, n);
        b.each(child, 20000 + n, 3);
      }
      for (PolicyRig* rig : {&b.one, &b.split}) rig->cache.uncommit(slot, 1950);
      b.each(slot, 12000, 70);
      CHECK(b.worst <= kF32);
      b.check_same_choice();
    }
  }

  // Rows far off are whole numbers times a scale, those in one place are rounded to bf16 after it.
  TEST_CASE("bf16: rows that eight bits hold give the same sets, and outputs as near as bf16 is") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind.cache, rounded(cone_data(kDim), DType::bf16), DType::bf16);
      const int slot = b.sequence(tokens(0, 700));
      b.each(slot, 700, 20);
      b.append(slot, 720, 1300);
      b.each(slot, 2020, 20);
      MESSAGE(kind.name << ": outputs off by " << b.worst);
      CHECK(b.worst <= 0.02);
      if (kind.name != "hybrid sampled") b.check_same_choice();
    }
  }

  TEST_CASE("all keys attended exactly: outputs of eight bits are off by 1 % of their norm") {
    recipe::Cache cache = sparse_cache(CacheKind::hybrid, 4, kRecent);
    cache.hybrid.exact = {1};
    cache.hybrid.refine = {1};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Both b(cache, cone_data(kDim), dtype);
      const int slot = b.sequence(tokens(0, 1500));
      double square = 0, norm = 0;
      for (int i = 0; i < 20; ++i) {
        const Row want = b.one.extend(slot, tokens(3000 + i, 1))[0],
                  got = b.split.extend(slot, tokens(3000 + i, 1))[0];
        for (size_t c = 0; c < want.size(); ++c) {
          square += (double{got[c]} - want[c]) * (double{got[c]} - want[c]);
          norm += double{want[c]} * want[c];
        }
      }
      MESSAGE(std::string(dtype_name(dtype))
              << ": off by " << std::sqrt(square / norm) << " of the norm");
      CHECK(std::sqrt(square / norm) <= 0.01);
      CHECK(square > 0);
    }
  }

  TEST_CASE("bytes in host memory stay as they were first written, however often a text is cut") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Kind& kind : kinds()) {
        CAPTURE(kind.name);
        CAPTURE(dtype_name(dtype));
        PolicyRig rig = rig_of(in_eight_bits(kind.cache), cone_data(kDim), dtype);
        const int slot = rig.sequence(tokens(0, 650));
        rig.extend_each(slot, tokens(650, 90));
        rig.cache.residence().store(slot);
        const std::string want = far_bytes(rig.cache, slot, 740);
        const int child = rig.cache.fork(slot, rig.cache.readers_of(slot));
        const size_t token = want.size() / 740 / 2;  // of a layer
        for (const int n : {739, 700, 660, 641, 500, 130, 5}) {
          CAPTURE(n);
          rig.cache.truncate(child, n);
          rig.extend_each(child, tokens(9000 + n, 70));
          rig.cache.residence().store(child);
          const std::string got = far_bytes(rig.cache, child, n);
          const size_t part = token * static_cast<size_t>(n);
          CHECK(got.substr(0, part) == want.substr(0, part));
          CHECK(got.substr(part) == want.substr(token * 740, part));
          rig.cache.truncate(child, n);
        }
        CHECK(far_bytes(rig.cache, slot, 740) == want);
      }
  }

  TEST_CASE("f32: saved states have the wide rows, load anywhere, and give the same index again") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      const auto engine_of = [](const recipe::Cache& cache) {
        return make_engine(small_model("llama-3.1"),
                           {.max_seqs = 2, .max_tokens = 2048, .caches = {cache}});
      };
      const auto split = engine_of(in_eight_bits(kind.cache)), one = engine_of(kind.cache);
      const Ids prompt = random_ids(*split, 900, 1), after = random_ids(*split, 30, 2);
      const TemporaryFolder folder;
      const int slot = split->cache().create();
      prefill(*split, slot, prompt);
      decode::save_state(folder / "state", *split, slot, prompt);
      const std::vector<Row> keys = rows_of(split->cache(), slot, 900);
      const auto saved = decode::open_state(folder / "state", split->files(), DType::f32);
      const int again = decode::restore_state(saved, *split, split->cache().all_readers());
      CHECK(rows_of(split->cache(), again, 900) == keys);
      CHECK(extend_each(*split, again, after) == extend_each(*split, slot, after));
      const int from_one = decode::restore_state(saved, *one, one->cache().all_readers());
      CHECK(rows_of(one->cache(), from_one, 900) == keys);
    }
  }

  TEST_CASE("random texts of benches are the usual ones, made narrow") {
    const recipe::Cache cache = kinds()[0].cache;
    PolicyRig one = rig_of(cache, cone_data(kDim)),
              split = rig_of(in_eight_bits(cache), cone_data(kDim));
    const int slot = one.cache.create(), other = split.cache.create();
    kv::fill_random(one.cache, slot, 500, 3);
    kv::fill_random(split.cache, other, 500, 3);
    std::vector<Row> want = rows_of(one.cache, slot, 500);
    const std::vector<Row> got = rows_of(split.cache, other, 500);
    int wrong = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const bool dense = i / 2000 == 1;  // layer 1 is not in host memory
      if (!dense) round_to_eight_bits(want[i].data(), DType::f32, kDim);
      wrong += want[i] == got[i] ? 0 : 1;
    }
    CHECK(wrong == 0);
  }

  TEST_CASE("a plan has one byte a number and a scale a row; a GPU has room for copies") {
    const recipe::Cache cache = in_eight_bits(sparse_cache(CacheKind::lsh, 4, kRecent));
    for (const DType dtype : {DType::f32, DType::bf16}) {
      MemoryPlan plan;
      kv::Cache::plan(plan_spec(cache, dtype), plan);
      const size_t rows = size_t{65536} * 2 * 2;  // tokens, layers, KV heads
      CHECK(plan.find("kv/host/k")->bytes == rows * kDim);
      CHECK(plan.find("kv/host/v")->bytes == rows * kDim);
      CHECK(plan.find("kv/host/scales")->bytes == rows * 2 * sizeof(float));
      CHECK(plan.find("kv/host/staging") == nullptr);
      CHECK(plan.find("kv/near/scales") == nullptr);
      CHECK(plan.find("kv/prompt/k")->bytes == rows / 2 * kDim * dtype_bytes(dtype));
    }
    const Device gpu{Device::Kind::cuda, 0};
    MemoryPlan plan;
    kv::Cache::plan(plan_spec(cache, DType::bf16, gpu), plan);
    const PlanItem* const staging = plan.find("kv/host/staging");
    REQUIRE(staging != nullptr);
    CHECK(staging->device == gpu);
    CHECK(staging->bytes == size_t{64} * 64 * 2 * (kDim + 2 * sizeof(float)));
  }

  TEST_CASE("what a list reads is counted in bytes of narrow rows") {
    Both b(kinds()[0].cache);
    const int slot = b.sequence(tokens(0, 700));
    b.each(slot, 700, 5);
    // Layers 0 and 2 have lists; fixed keys are near ones.
    const kv::KeyUsage &wide = b.one.cache.usage(0), &narrow = b.split.cache.usage(0);
    const double lists = wide.key_bytes - narrow.key_bytes;
    CHECK(lists > 0);
    const double per_key = 2 * (kDim * sizeof(float)) - 2 * (kDim + sizeof(float));
    CHECK(std::fmod(lists, per_key) == 0);
  }

  TEST_CASE("bf16 named for a model that computes in f32 is an error of kind recipe") {
    recipe::Cache cache = sparse_cache(CacheKind::lsh, 4, kRecent);
    cache.place = CachePlace::host;
    cache.host_dtype = HostDtype::bf16;
    MemoryPlan plan;
    CHECK_THROWS_WITH_AS(kv::Cache::plan(plan_spec(cache, DType::f32), plan),
                         "cache.host_dtype: is bf16, but this model computes in f32", Error);
    MemoryPlan named, automatic;
    kv::Cache::plan(plan_spec(cache, DType::bf16), named);
    cache.host_dtype = HostDtype::automatic;
    kv::Cache::plan(plan_spec(cache, DType::bf16), automatic);
    CHECK(named.find("kv/host/k")->bytes == automatic.find("kv/host/k")->bytes);
  }
}
