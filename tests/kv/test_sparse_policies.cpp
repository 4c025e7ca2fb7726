#include <doctest/doctest.h>

#include "base/parallel.h"
#include "kv/policies/token_index.h"
#include "policy_rig.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::HybridBudget;
using recipe::HybridTail;

namespace {

struct Named {
  std::string name;
  Cache cache;
};

Cache hybrid(double exact, HybridTail tail, double sample = 0.05) {
  Cache c = sparse_cache(CacheKind::hybrid);
  c.hybrid.exact = {exact};
  c.hybrid.sample = {sample};
  c.hybrid.tail = tail;
  return c;
}
Cache lsh(int bits, int tables, int min_hits) {
  Cache c = sparse_cache(CacheKind::lsh);
  c.lsh = {.bits = bits, .tables = tables, .min_hits = min_hits};
  return c;
}

/// The same kinds once more with keys in host memory, where they may lie there.
std::vector<Named> in_both_places(std::vector<Named> kinds) {
  for (size_t i = 0, n = kinds.size(); i < n; ++i) {
    Named hosted = kinds[i];
    if (hosted.cache.kind != CacheKind::lsh && hosted.cache.kind != CacheKind::hybrid) continue;
    hosted.name += ", in host memory";
    hosted.cache.place = recipe::CachePlace::host;
    kinds.push_back(hosted);
  }
  return kinds;
}

/// Every kind that chooses keys, with a small budget.
std::vector<Named> sparse_kinds() {
  Cache topk = sparse_cache(CacheKind::topk), quest = sparse_cache(CacheKind::quest);
  Cache sampling = sparse_cache(CacheKind::oracle_sampling);
  topk.topk.ratio = sampling.topk.ratio = {0.1};
  quest.quest = {.page = 16, .ratio = {0.1}};
  Cache of_mass = hybrid(0.3, HybridTail::means), of_error = hybrid(0.05, HybridTail::sampled);
  of_mass.hybrid.budget = HybridBudget::mass;
  of_error.hybrid.budget = HybridBudget::error;
  Cache no_floor = lsh(6, 40, 2);
  no_floor.lsh.u_floor = 0;
  Cache shared = hybrid(0.05, HybridTail::means), shared_sampled = of_error;
  Cache shared_clusters = hybrid(0.05, HybridTail::clusters);
  for (Cache* cache : {&shared, &shared_sampled, &shared_clusters})
    cache->hybrid.group = recipe::HybridGroup::shared;
  return in_both_places({{"topk", topk},
                         {"oracle_sampling", sampling},
                         {"quest", quest},
                         {"lsh", lsh(6, 40, 2)},
                         {"lsh without a floor", no_floor},
                         {"hybrid means", hybrid(0.05, HybridTail::means)},
                         {"hybrid clusters", hybrid(0.05, HybridTail::clusters)},
                         {"hybrid sampled", hybrid(0.05, HybridTail::sampled)},
                         {"hybrid mass", of_mass},
                         {"hybrid error", of_error},
                         {"hybrid none", hybrid(0.05, HybridTail::none)},
                         {"hybrid shared", shared},
                         {"hybrid shared clusters", shared_clusters},
                         {"hybrid shared, error", shared_sampled},
                         {"snapkv", snapkv(60, 16)},
                         {"retrieval", retrieval(64, 8)}});
}

/// The same kinds with a budget of everything; drawing with replacement never has one.
std::vector<Named> exact_kinds() {
  Cache topk = sparse_cache(CacheKind::topk), quest = sparse_cache(CacheKind::quest);
  topk.topk.ratio = {1.0};
  quest.quest = {.page = 16, .ratio = {1.0}};
  Cache all_collide = lsh(1, 96, 1);
  all_collide.lsh.u_floor = 0;
  Cache all_mass = hybrid(1, HybridTail::means);
  all_mass.hybrid.budget = HybridBudget::mass;
  all_mass.hybrid.mass = 1;
  Cache shared = hybrid(1, HybridTail::means), shared_mass = all_mass;
  shared.hybrid.group = shared_mass.hybrid.group = recipe::HybridGroup::shared;
  return in_both_places(
      {{"topk", topk},
       {"quest", quest},
       {"lsh", all_collide},
       {"hybrid, exact set", hybrid(1, HybridTail::none)},
       {"hybrid, exact set and a tail of nothing", hybrid(1, HybridTail::sampled)},
       {"hybrid, all mass", all_mass},
       {"hybrid, a shared set of all", shared},
       {"hybrid, a shared set of all mass", shared_mass},
       {"snapkv", snapkv(2000, 16)},
       {"retrieval", retrieval(5000, 8)}});
}

const TokenData kCone = cone_data(32);

std::vector<Row> decoded(const Cache& cache, const Ids& prompt, const Ids& after,
                         const PolicyRig::Shape& shape = {}, const TokenData& data = kCone) {
  PolicyRig rig(shape, {cache}, data);
  return rig.extend_each(rig.sequence(prompt), after);
}

}  // namespace

TEST_SUITE("kv/sparse_policies") {
  TEST_CASE("a layer's scale of scores reaches every choice: as queries that are as much longer") {
    std::vector<Named> kinds = sparse_kinds();
    kinds.push_back({"full", {}});
    kinds.push_back({"snapkv", snapkv(48, 8)});
    for (const Named& kind : kinds) {
      CAPTURE(kind.name);
      PolicyRig::Shape shape;
      shape.geometry.head_dim = 64;  // its root is exact
      PolicyRig::Shape scaled = shape;
      scaled.geometry.layers = {{.scale = {.of = 64}}, {.scale = {.times = 0.25}}};
      const TokenData data = cone_data(64);
      PolicyRig longer(shape, {kind.cache},
                       [&](Part part, int32_t token, int layer, int head, float* out) {
                         data(part, token, layer, head, out);
                         if (part != Part::q || layer != 1) return;
                         for (int c = 0; c < 64; ++c) out[c] *= 2;
                       });
      PolicyRig usual(shape, {kind.cache}, data), times(scaled, {kind.cache}, data);
      const auto run = [](PolicyRig& rig) {
        const int slot = rig.sequence(tokens(0, 500));
        return rig.extend_each(slot, tokens(5000, 4));
      };
      const std::vector<Row> got = run(times);
      CHECK(got == run(longer));
      CHECK(got != run(usual));
    }
  }

  TEST_CASE("a budget of everything is full attention") {
    const Ids prompt = tokens(0, 700), after = tokens(5000, 5);
    const std::vector<Row> want = decoded({}, prompt, after);
    for (const Named& kind : exact_kinds()) {
      CAPTURE(kind.name);
      CHECK(max_difference(decoded(kind.cache, prompt, after), want) <= 1e-5);
    }
  }

  TEST_CASE("a small budget is not, but near") {
    const Ids prompt = tokens(0, 700), after = tokens(5000, 5);
    const std::vector<Row> want = decoded({}, prompt, after);
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      const double off = max_difference(decoded(kind.cache, prompt, after), want);
      CHECK(off > 1e-4);
      CHECK(off < 2);  // |v| < 1
    }
  }

  // Below and in the other tests of sparse policies: cases that other programs of this kind get
  // wrong. Short prompts.
  TEST_CASE("a prompt that the sinks and recent tokens cover is read in full") {
    for (const Named& kind : sparse_kinds()) {
      if (kind.name == "topk" || kind.name == "oracle_sampling") continue;  // no fixed tokens
      CAPTURE(kind.name);
      for (const int length : {1, 3, 4, 5, 15, 16, 17, 19, 20}) {
        if (kind.name == "quest" && length > 16 + 15) continue;
        CAPTURE(length);
        const Ids prompt = tokens(0, length), after = tokens(5000, 6);
        CHECK(same(decoded(kind.cache, prompt, after), decoded({}, prompt, after)));
      }
    }
  }

  TEST_CASE("sinks or recent tokens beyond the context: everything is read") {
    const Ids prompt = tokens(0, 300), after = tokens(5000, 3);
    const std::vector<Row> want = decoded({}, prompt, after);
    for (const Named& kind : sparse_kinds()) {
      // The oracles have no fixed tokens, and those of snapkv and retrieval are of their budgets.
      if (kind.name == "topk" || kind.name == "oracle_sampling" || kind.name == "snapkv" ||
          kind.name == "retrieval")
        continue;
      CAPTURE(kind.name);
      Cache cache = kind.cache;
      cache.recent = {100000};
      CHECK(same(decoded(cache, prompt, after), want));
      if (kind.name == "quest") continue;  // has no sinks
      cache = kind.cache;
      cache.sinks = {100000};
      CHECK(same(decoded(cache, prompt, after), want));
    }
  }

  TEST_CASE("a dynamic part of one to three keys") {
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      for (const int length : {21, 22, 23})
        CHECK(all_finite(decoded(kind.cache, tokens(0, length), tokens(5000, 3))));
    }
  }

  // Retrieval reads fewer chunks with the first row that is committed: test_retrieval.cpp.
  TEST_CASE("rows of one chunk equal one row at a time, bit for bit") {
    const Ids prompt = tokens(0, 500), after = tokens(5000, 9);
    for (const Named& kind : sparse_kinds()) {
      if (kind.name == "retrieval") continue;
      CAPTURE(kind.name);
      PolicyRig rig({}, {kind.cache}, kCone);
      CHECK(same(rig.extend(rig.sequence(prompt), after), decoded(kind.cache, prompt, after)));
    }
  }

  TEST_CASE("chunks of the prefill do not show") {
    const Ids prompt = tokens(0, 500), after = tokens(5000, 3);
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      PolicyRig rig({}, {kind.cache}, kCone);
      const int slot = rig.cache.create();
      rig.prefill(slot, prompt, 37);
      CHECK(same(rig.extend_each(slot, after), decoded(kind.cache, prompt, after)));
    }
  }

  // Some of the sequences have an index, some have not, one is shorter than the sinks.
  TEST_CASE("a ragged batch equals each sequence alone, bit for bit") {
    const int lengths[] = {500, 2, 18, 333};
    for (const Named& kind : sparse_kinds()) {
      if (kind.name == "retrieval") continue;  // as above
      CAPTURE(kind.name);
      PolicyRig rig({}, {kind.cache}, kCone);
      std::vector<kv::SeqRows> rows;
      Ids ids;
      std::vector<Row> want;
      for (int b = 0; b < 4; ++b) {
        const Ids prompt = tokens(1000 * b, lengths[b]), after = tokens(5000 + 100 * b, 3 - b % 2);
        rows.push_back({rig.sequence(prompt), static_cast<int>(after.size())});
        ids.insert(ids.end(), after.begin(), after.end());
        for (const Row& row : decoded(kind.cache, prompt, after)) want.push_back(row);
      }
      const kv::Step step = rig.cache.begin({.rows = rows});
      CHECK(same(rig.attend(step, ids), want));
    }
  }

  TEST_CASE("the number of threads does not show") {
    const int threads = max_threads();
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      std::vector<Row> want;
      for (const int n : {1, 2, 4, 13}) {
        CAPTURE(n);
        set_threads(n);
        const std::vector<Row> rows = decoded(kind.cache, tokens(0, 400), tokens(5000, 2));
        if (want.empty()) want = rows;
        CHECK(same(rows, want));
      }
    }
    set_threads(threads);
  }

  TEST_CASE("a seed repeats; another one changes what is sampled") {
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      Cache other = kind.cache;
      other.lsh.seed = 1;
      const Ids prompt = tokens(0, 400), after = tokens(5000, 3);
      const std::vector<Row> rows = decoded(kind.cache, prompt, after);
      CHECK(same(rows, decoded(kind.cache, prompt, after)));
      const bool random = kind.name != "topk" && kind.name != "quest" && kind.name != "snapkv" &&
                          kind.name != "retrieval";
      CHECK(same(rows, decoded(other, prompt, after)) == !random);
    }
  }

  TEST_CASE("forks share what is indexed and part when one of them writes") {
    constexpr int kRoll = kv::TokenIndex::kRoll;
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      const PolicyRig::Shape shape{.max_seqs = 3, .max_tokens = 2048, .max_rows = kRoll + 64};
      PolicyRig rig(shape, {kind.cache}, kCone);
      const Ids prompt = tokens(0, 200), after = tokens(5000, 2);
      const int root = rig.sequence(prompt);
      const int a = rig.cache.fork(root, 0), b = rig.cache.fork(root, 0);
      const std::vector<Row> want = decoded(kind.cache, prompt, after, shape);
      // Enough to be indexed at once, differently in each.
      const Ids long_a = tokens(7000, kRoll + 20), long_b = tokens(9000, kRoll + 30);
      rig.append(a, long_a);
      rig.append(b, long_b);
      const auto alone = [&](const Ids& generated) {
        PolicyRig single(shape, {kind.cache}, kCone);
        const int slot = single.sequence(prompt);
        single.append(slot, generated);
        return single.extend_each(slot, after);
      };
      CHECK(same(rig.extend_each(a, after), alone(long_a)));
      CHECK(same(rig.extend_each(b, after), alone(long_b)));
      CHECK(same(rig.extend_each(root, after), want));
    }
  }

  TEST_CASE("forks of a prompt that add little need no blocks of their own") {
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      PolicyRig rig({.max_prompts = 1, .max_tokens = 2048}, {kind.cache}, kCone);
      const Ids prompt = tokens(0, 200), after = tokens(5000, 2);
      const int root = rig.sequence(prompt);
      // 16 less than kRoll: Quest leaves up to a page of the prompt to the recent tokens.
      const int few = kv::TokenIndex::kRoll - 16 - 2;
      for (int i = 0; i < 3; ++i) {
        const int fork = rig.cache.fork(root, 0);
        const Ids own = tokens(20000 + 2000 * i, few);
        rig.append(fork, own);
        PolicyRig single({.max_seqs = 1, .max_tokens = 2048}, {kind.cache}, kCone);
        const int alone = single.sequence(prompt);
        single.append(alone, own);
        CHECK(same(rig.extend_each(fork, after), single.extend_each(alone, after)));
      }
    }
  }

  // A slot is freed and filled again without touching the others.
  TEST_CASE("release and refill leave the other sequences as they were") {
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      PolicyRig rig({.max_seqs = 2}, {kind.cache}, kCone);
      const Ids kept = tokens(0, 400), after = tokens(5000, 4);
      const int a = rig.sequence(kept);
      for (const int length : {300, 30, 700}) {
        const Ids other = tokens(10 * length, length);
        const int b = rig.sequence(other);
        CHECK(same(rig.extend_each(b, after), decoded(kind.cache, other, after)));
        rig.cache.release(b);
      }
      CHECK(same(rig.extend_each(a, after), decoded(kind.cache, kept, after)));
    }
  }

  TEST_CASE("going back and on: kinds with a budget of everything equal a run without the detour") {
    const Ids prompt = tokens(0, 300), after = tokens(5000, 4);
    for (const Named& kind : exact_kinds()) {
      CAPTURE(kind.name);
      for (const int back : {299, 290, 150, 21, 10, 1}) {
        CAPTURE(back);
        PolicyRig rig({}, {kind.cache}, kCone);
        const int slot = rig.sequence(prompt);
        rig.extend(slot, tokens(7000, 20));
        rig.cache.truncate(slot, back);
        const std::span<const int32_t> first(prompt.data(), static_cast<size_t>(back));
        const std::vector<Row> want = decoded({}, {first.begin(), first.end()}, after);
        CHECK(max_difference(rig.extend_each(slot, after), want) <= 1e-5);
      }
    }
  }

  TEST_CASE("going back: what is sampled afterwards repeats and equals a prompt of that length") {
    const Ids prompt = tokens(0, 300), after = tokens(5000, 4);
    for (const Named& kind : sparse_kinds()) {
      if (kind.name == "snapkv") continue;  // the queries there are gone: test_snapkv.cpp
      CAPTURE(kind.name);
      // The hybrid's codes too are relative to the newest queries, if they are still held, and
      // retrieval chooses by them.
      const bool by_queries = kind.name.starts_with("hybrid") || kind.name == "retrieval";
      const int length = by_queries ? 280 : 150;
      PolicyRig rig({}, {kind.cache}, kCone);
      const int slot = rig.sequence(prompt), fork = rig.cache.fork(slot, 0);
      rig.cache.truncate(slot, length);
      CHECK(same(rig.extend_each(slot, after), decoded(kind.cache, tokens(0, length), after)));
      CHECK(same(rig.extend_each(fork, after), decoded(kind.cache, prompt, after)));
    }
  }

  TEST_CASE("going back to where no queries are held: hybrid's codes do without them") {
    const Ids prompt = tokens(0, 300), after = tokens(5000, 4);
    const std::vector<Row> full = decoded({}, tokens(0, 150), after);
    for (const Named& kind : sparse_kinds()) {
      if (!kind.name.starts_with("hybrid")) continue;
      CAPTURE(kind.name);
      const auto back = [&] {
        PolicyRig rig({}, {kind.cache}, kCone);
        const int slot = rig.sequence(prompt);
        rig.cache.truncate(slot, 150);
        return rig.extend_each(slot, after);
      };
      const std::vector<Row> rows = back();
      CHECK(same(rows, back()));
      CHECK(max_difference(rows, full) < 1);
    }
  }

  // Generated tokens beyond any reserve.
  TEST_CASE("generated tokens are indexed, kRoll and more at a time") {
    constexpr int kRoll = kv::TokenIndex::kRoll;
    const Ids prompt = tokens(0, 100), after = tokens(50000, 2);
    const PolicyRig::Shape shape{.max_seqs = 1, .max_tokens = 4096, .max_rows = 512};
    const auto rolled = [&](const Cache& cache, kv::KeyUsage* usage) {
      PolicyRig rig(shape, {cache}, kCone);
      const int slot = rig.sequence(prompt);
      for (int i = 0; i < 5 * kRoll / 2; i += 128) rig.append(slot, tokens(1000 + i, 128));
      const kv::KeyUsage before = rig.cache.usage(0);
      std::vector<Row> rows = rig.extend_each(slot, after);
      if (usage != nullptr) *usage = rig.cache.usage(0).since(before);
      return rows;
    };
    const std::vector<Row> want = rolled({}, nullptr);
    for (const Named& kind : exact_kinds()) {
      CAPTURE(kind.name);
      CHECK(max_difference(rolled(kind.cache, nullptr), want) <= 1e-5);
    }
    for (const Named& kind : sparse_kinds()) {
      // The oracles score everything, snapkv reads generated text in full.
      if (kind.name == "topk" || kind.name == "oracle_sampling" || kind.name == "snapkv") continue;
      CAPTURE(kind.name);
      kv::KeyUsage usage;
      CHECK(all_finite(rolled(kind.cache, &usage)));
      // A query head reads no more of the generated text than its recent part and what has yet to
      // make up kRoll.
      CHECK(usage.fixed / usage.queries <= 4 + 16 + kRoll + 128);
    }
  }

  TEST_CASE("an index that comes into being only while text is generated") {
    constexpr int kRoll = kv::TokenIndex::kRoll;
    const Ids after = tokens(50000, 2);
    const PolicyRig::Shape shape{.max_seqs = 1, .max_tokens = 2048, .max_rows = 256};
    for (const Named& kind : exact_kinds()) {
      CAPTURE(kind.name);
      const auto run = [&](const Cache& cache) {
        PolicyRig rig(shape, {cache}, kCone);
        const int slot = rig.sequence(tokens(0, 5));
        for (int i = 0; i < kRoll + 256; i += 128) rig.append(slot, tokens(1000 + i, 128));
        return rig.extend_each(slot, after);
      };
      CHECK(max_difference(run(kind.cache), run({})) <= 1e-5);
    }
  }

  TEST_CASE("dense layers read everything, the others choose") {
    for (Named& kind : in_both_places({{"lsh", lsh(6, 40, 2)}})) {
      CAPTURE(kind.name);
      kind.cache.dense_layers = {0};
      const Ids prompt = tokens(0, 400), after = tokens(5000, 1);
      const Row all = decoded({}, prompt, after)[0], some = decoded(kind.cache, prompt, after)[0];
      const auto half = static_cast<std::ptrdiff_t>(all.size() / 2);
      CHECK(same(Row(some.begin(), some.begin() + half), Row(all.begin(), all.begin() + half)));
      CHECK(max_difference(some, all) > 1e-4);
    }
  }

  // Codes of 12 and more bits; groups other than 1, 4 and 8.
  TEST_CASE("codes of up to 16 bits, and groups of any size") {
    for (const int heads : {1, 2, 5, 7, 8})
      for (const int bits : {11, 12, 13, 16}) {
        CAPTURE(heads);
        CAPTURE(bits);
        const PolicyRig::Shape shape{.geometry = {.n_layers = 1,
                                                  .n_heads = heads,
                                                  .n_kv_heads = 1,
                                                  .head_dim = 48,
                                                  .dtype = DType::f32},
                                     .max_seqs = 1,
                                     .max_tokens = 512};
        // Few tables of wide codes collect next to nothing: the same keys as of the query do.
        const TokenData cone = cone_data(48);
        const TokenData same_direction = [&](Part part, int32_t token, int layer, int head,
                                             float* out) {
          cone(part, token, layer, 0, out);
          if (part == Part::q || token % 50 == 0)
            for (int c = 0; c < 48; ++c)
              out[c] = part == Part::v ? 1.0f : c % 2 == 0 ? 3.0f : -3.0f;
          static_cast<void>(head);
        };
        for (const Named& kind : in_both_places({{"lsh", lsh(bits, 8, 2)}})) {
          const std::vector<Row> rows =
              decoded(kind.cache, tokens(1, 400), tokens(5000, 1), shape, same_direction);
          for (const float x : rows[0]) CHECK(x > 0.9f);
        }
      }
  }

  // Norms rounded to bf16 push cosines beyond 1; keys parallel to the query.
  TEST_CASE("bf16: keys parallel to the query, of every length") {
    const PolicyRig::Shape shape{.geometry = {.n_layers = 1,
                                              .n_heads = 2,
                                              .n_kv_heads = 1,
                                              .head_dim = 64,
                                              .dtype = DType::bf16},
                                 .max_seqs = 1,
                                 .max_tokens = 512};
    const TokenData parallel = [](Part part, int32_t token, int, int, float* out) {
      const float length = part == Part::k ? static_cast<float>(token - 200) * 0.037f : 1.0f;
      for (int c = 0; c < 64; ++c) out[c] = length * static_cast<float>(c % 7 - 3);
    };
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      CHECK(all_finite(decoded(kind.cache, tokens(0, 400), tokens(500, 3), shape, parallel)));
    }
  }

  // |k - center| = 0.
  TEST_CASE("constant keys: nothing to choose by, and no NaN") {
    const TokenData constant = [](Part part, int32_t token, int layer, int head, float* out) {
      part == Part::k ? static_cast<void>(std::fill_n(out, 32, 1.5f))
                      : kCone(part, token, layer, head, out);
    };
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      CHECK(all_finite(decoded(kind.cache, tokens(0, 400), tokens(5000, 3), {}, constant)));
    }
    const std::vector<Row> want = decoded({}, tokens(0, 400), tokens(5000, 3), {}, constant);
    for (const Named& kind : exact_kinds()) {
      CAPTURE(kind.name);
      if (kind.name.find("lsh") != std::string::npos) continue;  // a zero key has code 0
      CHECK(max_difference(decoded(kind.cache, tokens(0, 400), tokens(5000, 3), {}, constant),
                           want) <= 1e-5);
    }
  }

  TEST_CASE("a query of zeros: finite, and the plain mean where everything is read") {
    const TokenData zero_q = [](Part part, int32_t token, int layer, int head, float* out) {
      part == Part::q ? static_cast<void>(std::fill_n(out, 32, 0.0f))
                      : kCone(part, token, layer, head, out);
    };
    for (const Named& kind : sparse_kinds()) {
      CAPTURE(kind.name);
      CHECK(all_finite(decoded(kind.cache, tokens(0, 400), tokens(5000, 3), {}, zero_q)));
    }
  }

  // Exp that wraps below -88.
  TEST_CASE("scores thousands apart") {
    for (const float sharpness : {30.0f, 3000.0f}) {
      const TokenData sharp = cone_data(32, sharpness);
      const Ids prompt = tokens(0, 400), after = tokens(5000, 3);
      const std::vector<Row> want = decoded({}, prompt, after, {}, sharp);
      for (const Named& kind : sparse_kinds()) {
        CAPTURE(kind.name);
        const std::vector<Row> rows = decoded(kind.cache, prompt, after, {}, sharp);
        CHECK(all_finite(rows));
        for (const Row& row : rows)
          for (const float x : row) CHECK(std::abs(x) <= 1.001f);
      }
      CHECK(all_finite(want));
    }
  }

  TEST_CASE("text that was too short for a selection is counted as it is read: all of it") {
    const PolicyRig::Shape shape{};
    for (const Named& kind : sparse_kinds()) {
      // Never too short, or chosen from once it is long enough.
      if (kind.name == "topk" || kind.name == "oracle_sampling" || kind.name == "retrieval")
        continue;
      CAPTURE(kind.name);
      PolicyRig rig(shape, {kind.cache}, kCone);
      const int slot = rig.sequence(tokens(0, 16));
      rig.append(slot, tokens(1000, 500));
      const kv::KeyUsage before = rig.cache.usage(0);
      rig.extend(slot, tokens(5000, 1));
      const kv::KeyUsage read = rig.cache.usage(0).since(before);
      CHECK(read.visible == 0);
      CHECK(read.bytes() == shape.geometry.n_layers * shape.geometry.token_bytes() * 517);
    }
  }

  // No key collides.
  TEST_CASE("an empty sample leaves the static keys") {
    const TokenData apart = [](Part part, int32_t token, int layer, int head, float* out) {
      if (part == Part::v) return kCone(part, token, layer, head, out);
      // Half of the dynamic keys on either side of the center, all at right angles to q.
      for (int c = 0; c < 32; ++c)
        out[c] = part == Part::q ? (c < 16 ? 1.0f : 0.0f)
                 : c < 16        ? 0.0f
                                 : (token % 2 == 0 ? 1.0f : -1.0f) * static_cast<float>(c);
    };
    const Ids prompt = tokens(0, 400), after = tokens(5000, 1);
    for (const Named& kind : in_both_places({{"lsh", lsh(16, 2, 2)}})) {
      CAPTURE(kind.name);
      PolicyRig rig({}, {kind.cache}, apart);
      const std::vector<Row> rows = rig.extend(rig.sequence(prompt), after);
      CHECK(rig.cache.usage(0).selected == 0);
      // What a streaming cache of the same sinks and recent tokens reads: the row and 16 before it.
      CHECK(max_difference(rows, decoded(streaming(4, 17), prompt, after, {}, apart)) <= 1e-5);
    }
  }

  TEST_CASE("duplicates of a key are read together or not at all") {
    const TokenData repeated = [](Part part, int32_t token, int layer, int head, float* out) {
      kCone(part, part == Part::k ? token % 40 : token, layer, head, out);
    };
    for (const Named& kind : in_both_places({{"lsh", lsh(6, 40, 2)}})) {
      CAPTURE(kind.name);
      PolicyRig rig({.max_seqs = 1}, {kind.cache}, repeated);
      const int slot = rig.sequence(tokens(0, 420));  // dynamic part: 4 .. 403, each key ten times
      Row q(3 * 32);
      for (int head = 0; head < 3; ++head) kCone(Part::q, 5000, 0, head, q.data() + head * 32);
      const PolicyRig::Selection chosen = rig.select(slot, 419, 0, 0, q);
      for (const kv::KeyList& list : chosen.lists) {
        std::vector<int> count(40);
        for (size_t i = 1; i < list.segments.size(); ++i)
          for (int j = 0; j < list.segments[i].n; ++j)
            ++count[static_cast<size_t>(list.segments[i].ids[j] % 40)];
        int taken = 0;
        for (const int n : count) {
          CHECK((n == 0 || n == 10));
          taken += n > 0;
        }
        CHECK(taken > 0);
        CHECK(taken < 40);
      }
    }
  }

  TEST_CASE("no selection leaves its scratch, whatever the shares and ties") {
    const TokenData constant = [](Part part, int32_t token, int layer, int head, float* out) {
      part == Part::k ? static_cast<void>(std::fill_n(out, 32, 1.5f))
                      : kCone(part, token, layer, head, out);
    };
    std::vector<Named> kinds = exact_kinds();
    for (const Named& kind : sparse_kinds()) kinds.push_back(kind);
    kinds.push_back({"hybrid, all sampled", hybrid(0, HybridTail::sampled, 1)});
    kinds.push_back({"hybrid, half and all sampled", hybrid(0.5, HybridTail::sampled, 1)});
    for (const Named& kind : kinds)
      for (const bool ties : {false, true}) {
        CAPTURE(kind.name);
        CAPTURE(ties);
        const int length = 1000;
        PolicyRig rig({.max_seqs = 1, .max_tokens = length}, {kind.cache}, ties ? constant : kCone);
        const int slot = rig.sequence(tokens(0, length));
        Row q(3 * 32);
        for (int head = 0; head < 3; ++head) kCone(Part::q, 5000, 0, head, q.data() + head * 32);
        const PolicyRig::Selection chosen = rig.select(slot, length - 1, 0, 0, q);
        CHECK(chosen.inside);
        for (const kv::KeyList& list : chosen.lists)
          for (const KeySegment& s : list.segments)
            for (int i = 0; i < s.n; ++i) {
              REQUIRE(s.ids[i] >= 0);
              REQUIRE(s.ids[i] < length);
              // The best chunks come first, wherever they are.
              if (i > 0 && kind.name != "retrieval") REQUIRE(s.ids[i] >= s.ids[i - 1]);
            }
      }
  }
}
