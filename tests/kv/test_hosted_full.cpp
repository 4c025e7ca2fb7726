// All keys of long texts in host memory, attended there or streamed to the forward, both ends on a
// CPU. tests/kv/test_hosted_keys.cpp holds streamed ones against keys in one place, too.
#include <doctest/doctest.h>

#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Attend;
using recipe::CachePlace;

namespace {

/// Sums of the same terms divided in two; outputs are of order 1.
constexpr double kTolerance = 1e-5;

recipe::Cache full(Attend attend, CachePlace place = CachePlace::host) {
  recipe::Cache c;
  c.place = place;
  c.attend = attend;
  return c;
}

PolicyRig::Shape shape_of(DType dtype = DType::f32, int window = 0, int window_from = 0) {
  return {.geometry = with_window(
              {.n_layers = 3, .n_heads = 6, .n_kv_heads = 2, .head_dim = 32, .dtype = dtype},
              window, window_from),
          .max_seqs = 3,
          .max_tokens = 4096,
          .max_rows = 512};
}

/// Keys in one place and in two, the same calls on both.
struct Both {
  explicit Both(Attend attend, const PolicyRig::Shape& shape = shape_of())
      : one(shape, {full(Attend::automatic, CachePlace::device)}, cone_data(32)),
        split(shape, {full(attend)}, cone_data(32)) {}

  PolicyRig one, split;

  int sequence(const Ids& ids) {
    const int slot = one.sequence(ids);
    REQUIRE(split.sequence(ids) == slot);
    return slot;
  }
  int fork(int slot) {
    const int copy = one.cache.fork(slot, one.cache.readers_of(slot));
    REQUIRE(split.cache.fork(slot, split.cache.readers_of(slot)) == copy);
    return copy;
  }
  void append(int slot, const Ids& ids) {
    one.append(slot, ids);
    split.append(slot, ids);
  }
  void truncate(int slot, int n) {
    one.cache.truncate(slot, n);
    split.cache.truncate(slot, n);
  }
  int near_begin(int slot) const { return split.cache.policy(0).hosted()->range_begin(slot); }
};

/// Rows of an extend step over keys in one place, as the states of two ranges: of the tokens before
/// `begin` and of those from there on.
std::vector<Row> in_two_ranges(PolicyRig& rig, int slot, const Ids& ids, int begin) {
  const kv::Geometry& g = rig.cache.geometry();
  const kv::SeqRows seq[] = {{slot, static_cast<int>(ids.size())}};
  const kv::Step step = rig.cache.begin({.rows = seq});
  (void)rig.attend(step, ids);  // writes keys
  const AttentionBounds bounds{.max_seqs = 1,
                               .max_rows = step.n_rows,
                               .max_tokens = 4096,
                               .n_heads = g.n_heads,
                               .n_kv_heads = g.n_kv_heads,
                               .head_dim = g.head_dim};
  MemoryPlan plan;
  plan.add("workspace", ops::attention_workspace_bytes({}, bounds));
  Arena arena(plan);
  const auto workspace = ops::attention_workspace({}, bounds, arena.take("workspace"));
  std::vector<Row> rows(ids.size());
  const size_t states = ids.size() * static_cast<size_t>(g.n_heads),
               width = static_cast<size_t>(g.n_heads * g.head_dim);
  for (int layer = 0; layer < g.n_layers; ++layer) {
    Row q = rig.queries(layer, ids), out(q.size()), o(2 * q.size()), lse(2 * states);
    const auto tensor = [&](float* at) {
      return Tensor(at, DType::f32, {step.n_rows, g.n_heads, g.head_dim});
    };
    for (size_t part = 0; part < 2; ++part)
      ops::attention({.out = tensor(o.data() + part * q.size()),
                      .lse = lse.data() + part * states,
                      .q = tensor(q.data()),
                      .k = rig.cache.k(layer),
                      .v = rig.cache.v(layer),
                      .step = step.arrays,
                      .key_lo = part == 0 ? begin : 0,
                      .key_hi = part == 0 ? std::numeric_limits<int32_t>::max() : begin,
                      .scale = 1.0f / std::sqrt(static_cast<float>(g.head_dim))},
                     workspace);
    ops::merge_states(tensor(out.data()), o.data(), lse.data(), 2);
    for (size_t r = 0; r < ids.size(); ++r)
      rows[r].insert(rows[r].end(), out.begin() + static_cast<std::ptrdiff_t>(r * width),
                     out.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
  }
  rig.cache.commit(step);
  return rows;
}

/// One step of several sequences.
struct Batch {
  std::vector<int> slots;
  std::vector<Ids> tokens;
};
std::vector<Row> extend_all(PolicyRig& rig, const Batch& batch) {
  std::vector<kv::SeqRows> rows;
  Ids all;
  for (size_t b = 0; b < batch.slots.size(); ++b) {
    rows.push_back({batch.slots[b], static_cast<int>(batch.tokens[b].size())});
    all.insert(all.end(), batch.tokens[b].begin(), batch.tokens[b].end());
  }
  const kv::Step step = rig.cache.begin({.rows = rows});
  std::vector<Row> out = rig.attend(step, all);
  rig.cache.commit(step);
  return out;
}

double page_bytes(const kv::Geometry& g) { return kPageTokens * g.token_bytes(); }

}  // namespace

TEST_SUITE("kv/hosted_full") {
  TEST_CASE("f32: the CPU's part and the near keys are two ranges of one attention") {
    Both b(Attend::cpu);
    int first = 0;
    const int slot = b.sequence(tokens(0, 2300));
    const auto check = [&](int n) {
      const Ids ids = tokens(10000 + (first += n), n);
      const int begin = b.near_begin(slot);
      CAPTURE(begin);
      CHECK(begin % kPageTokens == 0);
      const std::vector<Row> want = in_two_ranges(b.one, slot, ids, begin);
      REQUIRE(all_finite(want));
      CHECK(b.split.extend(slot, ids) == want);
    };
    for (const int n : {1, 1, 7, 40, 150, 300, 1}) check(n);
    for (const int length : {2000, 1024 + 64, 200}) {
      b.truncate(slot, length);
      for (int i = 0; i < 70; ++i) check(1);
    }
  }

  TEST_CASE("f32, bf16: steps over keys on either side equal full attention") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Attend attend : {Attend::automatic, Attend::cpu, Attend::gpu}) {
        CAPTURE(dtype_name(dtype));
        CAPTURE(recipe::yaml_text(attend));
        Both b(attend, shape_of(dtype));
        const int slot = b.sequence(tokens(0, 1500)), other = b.sequence(tokens(3000, 40)),
                  child = b.fork(slot);
        for (int i = 0; i < 150; ++i) {
          // Lengths differ, two texts share pages, and a row of 63 fills one's newest page.
          const Batch batch{
              {slot, other, child},
              {tokens(4000 + i, 1), tokens(5000 + i, i == 9 ? 63 : 1), tokens(6000 + i, i % 2)}};
          const std::vector<Row> want = extend_all(b.one, batch), got = extend_all(b.split, batch);
          REQUIRE(all_finite(want));
          if (attend == Attend::gpu)
            REQUIRE(got == want);
          else
            REQUIRE(max_difference(got, want) <= (dtype == DType::f32 ? kTolerance : 2e-2));
        }
        b.truncate(child, 700);
        b.append(child, tokens(7000, 300));
        const Batch last{{child, slot}, {tokens(8000, 3), tokens(8100, 2)}};
        const std::vector<Row> want = extend_all(b.one, last), got = extend_all(b.split, last);
        CHECK(max_difference(got, want) <= (dtype == DType::f32 ? kTolerance : 2e-2));
        if (attend == Attend::gpu) CHECK(got == want);
      }
  }

  TEST_CASE("a text that no far page belongs to has the bits of keys in one place") {
    Both b(Attend::cpu);
    const int slot = b.sequence(tokens(0, 100));
    for (int i = 0; i < 27; ++i) {
      const Ids ids = tokens(200 + i, 1);
      CHECK(b.split.extend(slot, ids) == b.one.extend(slot, ids));
    }
    CHECK(b.near_begin(slot) == 0);
    b.append(slot, tokens(300, 1));
    CHECK(b.near_begin(slot) == kPageTokens);
  }

  TEST_CASE("streamed: a step that is given up, and texts that change between steps") {
    PolicyRig::Shape shape = shape_of();
    SUBCASE("") {}
    SUBCASE("through a small ring") { shape.ring_eighths = 1; }
    Both b(Attend::gpu, shape);
    const int slot = b.sequence(tokens(0, 1000));
    const auto check = [&](int of, int first) {
      const Ids ids = tokens(first, 1);
      CHECK(b.split.extend(of, ids) == b.one.extend(of, ids));
    };
    check(slot, 1000);
    for (const int layers : {1, 2}) {
      const Ids ids = tokens(1001, 1);
      const kv::SeqRows rows[] = {{slot, 1}};
      const kv::Step step = b.split.cache.begin({.rows = rows});
      for (int layer = 0; layer < layers; ++layer)
        (void)b.split.attend_layer(layer, step, b.split.queries(layer, ids));
      check(slot, 1001 + layers);
    }
    // Pages get other tokens: of the same text, and of one that takes them over.
    b.truncate(slot, 500);
    b.append(slot, tokens(2000, 500));
    check(slot, 2500);
    b.one.cache.release(slot);
    b.split.cache.release(slot);
    const int next = b.sequence(tokens(3000, 1000));
    check(next, 4000);
    check(next, 4001);
  }

  TEST_CASE("streamed: only committed far pages travel, each once a step and layer") {
    Both b(Attend::gpu);
    const double page = page_bytes(b.one.cache.geometry());
    const int slot = b.sequence(tokens(0, 1000));  // 14 far pages
    REQUIRE(b.near_begin(slot) == 14 * kPageTokens);
    const auto bytes_of = [&](const std::vector<int>& slots) {
      const double before = b.split.cache.residence().streamed_bytes();
      Batch batch;
      for (const int s : slots) {
        batch.slots.push_back(s);
        batch.tokens.push_back(tokens(2000 + s, 1));
      }
      (void)extend_all(b.split, batch);
      return b.split.cache.residence().streamed_bytes() - before;
    };
    // Two layers, the third in place of the first, and the first again for the next step. The
    // second stays where it is.
    CHECK(bytes_of({slot}) == 4 * 14 * page);
    CHECK(bytes_of({slot}) == 2 * 14 * page);
    const int child = b.split.cache.fork(slot, b.split.cache.readers_of(slot));
    CHECK(bytes_of({slot, child}) == 2 * 14 * page);
    b.split.append(child, tokens(3000, 100));  // its first far page that is its own
    CHECK(b.near_begin(child) == 16 * kPageTokens);
    // Of the first two layers the child's pages alone.
    CHECK(bytes_of({slot, child}) == 2 * 2 * page + 2 * (14 + 2) * page);
    CHECK(bytes_of({slot, child}) == 2 * (14 + 2) * page);
  }

  TEST_CASE("streamed through a small ring: every layer travels in every step") {
    PolicyRig::Shape shape = shape_of();
    shape.max_tokens = 1024 + 2 * 64;
    shape.total_tokens = shape.max_tokens;
    // 14 of 24 pages: the second layer's memory is the third's, too.
    for (const int eighths : {8, 3}) {
      CAPTURE(eighths);
      shape.ring_eighths = eighths;
      Both b(Attend::gpu, shape);
      const double layer = 14 * page_bytes(b.one.cache.geometry());
      REQUIRE(b.sequence(tokens(0, 1000)) == 0);
      for (int i = 0; i < 4; ++i) {
        const double before = b.split.cache.residence().streamed_bytes();
        const Batch batch{{0}, {tokens(2000 + i, 1)}};
        const std::vector<Row> want = extend_all(b.one, batch);
        CHECK(extend_all(b.split, batch) == want);
        // The first step's and the first layer of the next one.
        const int layers = (eighths < 8 ? 3 : 2) + (i > 0 ? 0 : eighths < 8 ? 1 : 2);
        CHECK(b.split.cache.residence().streamed_bytes() - before == layers * layer);
      }
    }
  }

  TEST_CASE("eight forks of a document copy what one does, in a step and in those after it") {
    constexpr int kForks = 8;
    PolicyRig::Shape shape = shape_of();
    shape.max_seqs = kForks + 1;
    shape.total_tokens = 6000;
    Both b(Attend::gpu, shape);
    const double page = page_bytes(b.one.cache.geometry());
    const int document = b.sequence(tokens(0, 1000));
    std::vector<int> forks;
    for (int i = 0; i < kForks; ++i) forks.push_back(b.fork(document));
    const auto bytes_of = [&](size_t n, int first) {
      Batch batch;
      for (size_t i = 0; i < n; ++i) {
        batch.slots.push_back(forks[i]);
        batch.tokens.push_back(tokens(first + 100 * static_cast<int>(i), 1));
      }
      const double before = b.split.cache.residence().streamed_bytes();
      const std::vector<Row> want = extend_all(b.one, batch);
      CHECK(extend_all(b.split, batch) == want);
      return b.split.cache.residence().streamed_bytes() - before;
    };
    CHECK(bytes_of(1, 2000) == 4 * 14 * page);
    CHECK(bytes_of(1, 3000) == 2 * 14 * page);
    for (const size_t n : {size_t{kForks}, size_t{3}, size_t{1}})
      CHECK(bytes_of(n, 4000 + 10 * static_cast<int>(n)) == 2 * 14 * page);
  }

  TEST_CASE("layers that stay on the device: any number, with the same rows, and fewer bytes") {
    constexpr int kLayers = 5;
    const std::vector<std::vector<int>> far = {{0, 1, 2, 3, 4}, {0, 1, 2, 3}, {0, 1, 3},
                                               {0, 2},          {0},          {}};
    for (const Attend attend : {Attend::gpu, Attend::cpu})
      for (int resident = 0; resident <= kLayers; ++resident) {
        CAPTURE(recipe::yaml_text(attend));
        CAPTURE(resident);
        PolicyRig::Shape shape = shape_of();
        shape.geometry.n_layers = kLayers;
        recipe::Cache cache = full(attend);
        cache.resident_layers = {resident};
        PolicyRig one(shape, {full(Attend::automatic, CachePlace::device)}, cone_data(32)),
            split(shape, {cache}, cone_data(32));
        const std::vector<int>& hosted = far[static_cast<size_t>(resident)];
        CHECK(split.cache.policy(0).hosted()->hosted_layers() == hosted);
        const int slot = one.sequence(tokens(0, 1000));
        REQUIRE(split.sequence(tokens(0, 1000)) == slot);
        const int other = one.sequence(tokens(3000, 70));
        REQUIRE(split.sequence(tokens(3000, 70)) == other);
        double before = 0;
        for (int i = 0; i < 70; ++i) {
          const Batch batch{{slot, other}, {tokens(4000 + i, 1 + i % 3), tokens(5000 + i, 1)}};
          const std::vector<Row> want = extend_all(one, batch), got = extend_all(split, batch);
          if (attend == Attend::gpu)
            REQUIRE(got == want);
          else
            REQUIRE(max_difference(got, want) <= kTolerance);
          if (i == 4) before = split.cache.residence().streamed_bytes();
          // A buffer of the ring that one layer alone goes to keeps it.
          const int n = kLayers - resident, copied = n > 3 ? n : n == 3 ? 2 : 0;
          if (i == 5 && attend == Attend::gpu)
            CHECK(split.cache.residence().streamed_bytes() - before ==
                  copied * 14 * page_bytes(one.cache.geometry()));
        }
      }
    MemoryPlan plan;
    recipe::Cache more = full(Attend::gpu);
    more.resident_layers = {4};
    CHECK_THROWS_WITH_AS(
        kv::Cache::plan({.geometry = shape_of().geometry,
                         .max_tokens = 256,
                         .total_tokens = 256,
                         .max_rows = 16,
                         .policies = {more}},
                        plan),
        "cache.resident_layers: is 4, but only 3 layers of this model can keep keys in host memory",
        Error);
  }

  TEST_CASE("a model whose first layers read whole texts has the keys of these in host memory") {
    for (const Attend attend : {Attend::cpu, Attend::gpu}) {
      CAPTURE(recipe::yaml_text(attend));
      Both b(attend, shape_of(DType::f32, 100, 1));
      CHECK(b.split.cache.policy(0).hosted()->hosted_layers() == std::vector<int>{0});
      const int slot = b.sequence(tokens(0, 700));
      for (int i = 0; i < 5; ++i) {
        const Ids ids = tokens(700 + i, 1);
        const std::vector<Row> want = b.one.extend(slot, ids), got = b.split.extend(slot, ids);
        CHECK(max_difference(got, want) <= kTolerance);
        if (attend == Attend::gpu) CHECK(got == want);
      }
    }
    MemoryPlan plan;
    CHECK_THROWS_WITH_AS(kv::Cache::plan({.geometry = shape_of(DType::f32, 100, 0).geometry,
                                          .max_tokens = 256,
                                          .total_tokens = 256,
                                          .max_rows = 16,
                                          .policies = {full(Attend::cpu)}},
                                         plan),
                         "cache.place: is host, which is not supported: all layers of this model "
                         "use a sliding window of 100 tokens",
                         Error);
  }

  TEST_CASE("memory: texts in host memory, a layer for prompts, and two for a ring") {
    const auto plan_of = [](Attend attend, int n_tokens, int ring_eighths = 8) {
      MemoryPlan plan;
      kv::Cache::plan({.geometry = shape_of().geometry,
                       .max_tokens = n_tokens,
                       .total_tokens = n_tokens,
                       .max_rows = 512,
                       .ring_eighths = ring_eighths,
                       .policies = {full(attend)}},
                      plan);
      return plan;
    };
    const MemoryPlan cpu = plan_of(Attend::cpu, 65536), gpu = plan_of(Attend::gpu, 65536);
    const size_t layer = size_t{65536} * 2 * 32 * sizeof(float);
    for (const MemoryPlan* plan : {&cpu, &gpu}) {
      CHECK(plan->find("kv/k") == nullptr);
      CHECK(plan->find("kv/host/k")->bytes == 3 * layer);
      CHECK(plan->find("kv/near/k")->bytes == plan_of(Attend::cpu, 4096).find("kv/near/k")->bytes);
    }
    CHECK(cpu.find("kv/prompt/k")->bytes == layer);
    CHECK(cpu.find("kv/ring/k") == nullptr);
    CHECK(gpu.find("workspace/far range") == nullptr);
    CHECK(gpu.find("kv/prompt/k") == nullptr);  // which goes through the ring's memory
    for (const char* name : {"kv/ring/k", "kv/ring/v"}) CHECK(gpu.find(name)->bytes == 2 * layer);
    for (const int eighths : {1, 5})
      CHECK(plan_of(Attend::gpu, 65536, eighths).find("kv/ring/k")->bytes ==
            layer + layer / 8 * static_cast<size_t>(eighths));
  }
}
