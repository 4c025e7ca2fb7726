// Keys in host memory next to a forward on the same machine: every bit is that of keys in one
// place.
#include <doctest/doctest.h>

#include <array>

#include "decode/state.h"
#include "policy_rig.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using recipe::CacheKind;
using recipe::CachePlace;

namespace {

constexpr int kRecent = 16;

struct Kind {
  std::string name;
  recipe::Cache cache;
  int ring_eighths = 8;
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid}) {
    recipe::Cache c = sparse_cache(kind, 4, kRecent);
    c.lsh = {.bits = 4, .tables = 24};
    c.dense_layers = {1};
    all.push_back({recipe::yaml_text(kind), c});
  }
  for (const auto tail : {recipe::HybridTail::sampled, recipe::HybridTail::clusters}) {
    all.push_back(all[1]);
    all.back().name = "hybrid " + recipe::yaml_text(tail);
    all.back().cache.hybrid.tail = tail;
  }
  recipe::Cache full;
  full.attend = recipe::Attend::gpu;
  for (const int eighths : {8, 3, 1})
    all.push_back({"full, streamed through " + std::to_string(eighths), full, eighths});
  return all;
}

PolicyRig rig_of(recipe::Cache cache, CachePlace place, DType dtype = DType::f32, int max_seqs = 3,
                 int ring_eighths = 8) {
  cache.place = place;
  return {
      {.geometry = {.n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .dtype = dtype},
       .max_seqs = max_seqs,
       .max_tokens = 4096,
       .max_rows = 512,
       .ring_eighths = ring_eighths},
      {cache},
      cone_data(32)};
}

/// A list's ids, with what weighs each: its bias and its norm, or 0 without.
std::vector<std::array<float, 3>> contents(const kv::KeyList& list) {
  std::vector<std::array<float, 3>> all;
  for (const KeySegment& s : list.segments)
    for (int i = 0; i < s.n; ++i)
      all.push_back({static_cast<float>(s.ids[i]), s.bias == nullptr ? 0 : s.bias[i],
                     s.norms == nullptr ? 0 : s.norms[s.ids[i]]});
  all.push_back({list.q_norm, list.q_center, static_cast<float>(list.n_static)});
  return all;
}

/// The same calls on both.
struct Both {
  explicit Both(const recipe::Cache& cache, DType dtype = DType::f32)
      : Both(Kind{.name = "", .cache = cache}, dtype) {}
  explicit Both(const Kind& kind, DType dtype = DType::f32)
      : one(rig_of(kind.cache, CachePlace::device, dtype)),
        split(rig_of(kind.cache, CachePlace::host, dtype, 3, kind.ring_eighths)) {}

  PolicyRig one, split;

  int sequence(const Ids& ids) {
    const int slot = one.sequence(ids);
    REQUIRE(split.sequence(ids) == slot);
    return slot;
  }
  void prefill(int slot, const Ids& ids) {
    one.prefill(slot, ids);
    split.prefill(slot, ids);
  }
  void check_extend(int slot, const Ids& ids) {
    const std::vector<Row> want = one.extend(slot, ids);
    REQUIRE(all_finite(want));
    CHECK(split.extend(slot, ids) == want);
  }
  /// One token at a time.
  void check_each(int slot, int first, int n) {
    for (int i = 0; i < n; ++i) check_extend(slot, tokens(first + i, 1));
  }
  /// Ids, biases and masses of what a query chooses, for every layer that chooses and KV head.
  void check_lists(int slot, int32_t asks) {
    const kv::Geometry& g = one.cache.geometry();
    const int last = one.cache.length(slot) - 1;
    const auto width = static_cast<size_t>(g.group() * g.head_dim);
    for (const int layer : split.cache.policy(0).hosted()->hosted_layers()) {
      const Row q = one.queries(layer, tokens(asks, 1));
      for (int kv_head = 0; kv_head < g.n_kv_heads; ++kv_head) {
        const std::span<const float> of_group(q.data() + static_cast<size_t>(kv_head) * width,
                                              width);
        const auto chosen = one.select(slot, last, layer, kv_head, of_group),
                   hosted = split.select(slot, last, layer, kv_head, of_group);
        REQUIRE(hosted.lists.size() == chosen.lists.size());
        for (size_t h = 0; h < chosen.lists.size(); ++h) {
          CHECK(chosen.lists[h].n_keys() > chosen.lists[h].n_static);
          CHECK(contents(hosted.lists[h]) == contents(chosen.lists[h]));
        }
      }
    }
  }
  void append(int slot, int first, int n) {
    for (int done = 0; done < n; done += 100) {
      const Ids ids = tokens(first + done, std::min(100, n - done));
      one.append(slot, ids);
      split.append(slot, ids);
    }
  }
};

}  // namespace

TEST_SUITE("kv/hosted/hosted_keys") {
  TEST_CASE("prompts, generated tokens of any length, and texts of every length at the edges") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind);
      const int slot = b.sequence(tokens(0, 700));
      b.check_each(slot, 700, 70);
      b.append(slot, 770, 1300);  // the index grows
      b.check_each(slot, 2070, 3);
      b.check_extend(slot, tokens(2073, 150));
      b.check_each(slot, 2223, 2);
      for (const int n : {1, kRecent, kRecent + 4, kRecent + 5, kPageTokens, 200}) {
        CAPTURE(n);
        const int other = b.sequence(tokens(5000, n));
        b.check_each(other, 5000 + n, 5);
        b.append(other, 6000, 1200);
        b.check_each(other, 7200, 2);
        b.one.cache.release(other);
        b.split.cache.release(other);
      }
      b.check_each(slot, 2225, 2);
    }
  }

  TEST_CASE("the same sets, after prompts, as the index grows, in forks and after going back") {
    for (const Kind& kind : kinds()) {
      if (kind.cache.kind == CacheKind::full) continue;  // chooses nothing
      CAPTURE(kind.name);
      Both b(kind);
      const int slot = b.sequence(tokens(0, 700));
      for (const int asks : {5000, 5001}) b.check_lists(slot, asks);
      b.append(slot, 700, 1300);
      b.check_lists(slot, 5002);
      const int child = b.one.cache.fork(slot, b.one.cache.readers_of(slot));
      REQUIRE(b.split.cache.fork(slot, b.split.cache.readers_of(slot)) == child);
      b.append(child, 6000, 1200);
      b.check_lists(child, 5003);
      b.check_lists(slot, 5004);
      b.one.cache.truncate(child, 1500);
      b.split.cache.truncate(child, 1500);
      b.check_lists(child, 5005);
    }
  }

  TEST_CASE("bf16: every bit is that of keys in one place, too") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind, DType::bf16);
      const int slot = b.sequence(tokens(0, 700));
      b.check_each(slot, 700, 5);
      b.append(slot, 705, 1300);
      b.check_each(slot, 2005, 3);
      b.check_extend(slot, tokens(2008, 40));
    }
  }

  TEST_CASE("prompts that go on: what was generated is read densely") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind);
      const int slot = b.sequence(tokens(0, 300));
      b.check_each(slot, 300, 5);
      b.append(slot, 305, 1200);
      b.prefill(slot, tokens(1505, 400));
      b.check_each(slot, 1905, 3);
      // Texts are whole in host memory for who saves them.
      b.split.cache.residence().store(slot);
      const kv::Geometry& g = b.one.cache.geometry();
      int wrong = 0;
      for (int layer = 0; layer < g.n_layers; ++layer)
        for (int token = 0; token < b.one.cache.length(slot); ++token)
          for (int head = 0; head < g.n_kv_heads; ++head) {
            const auto row = [&](const kv::Cache& cache, const Tensor& pool) {
              const int32_t page = cache.store().page(slot, token / kPageTokens);
              return Row(pool.as<float>() +
                             ((page * g.n_kv_heads + head) * kPageTokens + token % kPageTokens) *
                                 g.head_dim,
                         pool.as<float>() + ((page * g.n_kv_heads + head) * kPageTokens +
                                             token % kPageTokens + 1) *
                                                g.head_dim);
            };
            wrong += row(b.one.cache, b.one.cache.k(layer)) !=
                                 row(b.split.cache, b.split.cache.k(layer)) ||
                             row(b.one.cache, b.one.cache.v(layer)) !=
                                 row(b.split.cache, b.split.cache.v(layer))
                         ? 1
                         : 0;
          }
      CHECK(wrong == 0);
      b.check_each(slot, 1908, 3);
    }
  }

  TEST_CASE("forks write apart, and texts are cut anywhere") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind);
      const int slot = b.sequence(tokens(0, 650));
      b.check_each(slot, 650, 10);
      const int child = b.one.cache.fork(slot, b.one.cache.readers_of(slot));
      REQUIRE(b.split.cache.fork(slot, b.split.cache.readers_of(slot)) == child);
      for (int i = 0; i < 80; ++i) {
        b.check_extend(child, tokens(8000 + i, 1));
        b.check_extend(slot, tokens(9000 + i, 1));
      }
      b.append(child, 8080, 1200);
      b.check_each(child, 9280, 2);
      b.check_each(slot, 9080, 2);
      for (const int n : {1200, 739, 640, 600, 70, 3}) {
        CAPTURE(n);
        b.one.cache.truncate(child, n);
        b.split.cache.truncate(child, n);
        b.check_each(child, 20000 + n, 3);
      }
      b.one.cache.release(child);
      b.split.cache.release(child);
      b.check_each(slot, 9082, 3);
    }
  }

  TEST_CASE("rows that are taken back, and run again") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind);
      const int slot = b.sequence(tokens(0, 500));
      for (PolicyRig* rig : {&b.one, &b.split}) {
        const Ids ids = tokens(500, 6);
        const kv::SeqRows rows[] = {{slot, 6}};
        const kv::Step step = rig->cache.begin({.rows = rows});
        rig->attend(step, ids);
        const int kept[] = {2};
        rig->cache.commit(step, kept);
        rig->cache.uncommit(slot, 490);
      }
      b.check_each(slot, 700, 70);
    }
  }

  TEST_CASE("trees: branches see their paths, in one step and by levels") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      Both b(kind);
      const int slot = b.sequence(tokens(0, 600));
      b.check_each(slot, 600, 30);
      const std::vector<int> parent = {-1, 0, 0, 1, 1, 2, -1};
      const kv::SeqRows rows[] = {{slot, static_cast<int>(parent.size())}};
      const kv::Tree trees[] = {{parent}};
      const auto in_one = [&](PolicyRig& rig) {
        const kv::Step step = rig.cache.begin({.rows = rows, .trees = trees});
        return rig.attend(step, tokens(700, rows[0].n_rows));
      };
      CHECK(in_one(b.split) == in_one(b.one));
      const auto by_levels = [&](PolicyRig& rig) {
        const std::vector<int> ends[] = {{1, 3, 7}};
        std::vector<Row> all;
        int first = 0;
        for (const kv::Step& level : rig.cache.begin_levels({.rows = rows, .trees = trees}, ends)) {
          for (Row& row : rig.attend(level, tokens(800 + first, level.n_rows)))
            all.push_back(std::move(row));
          first += level.n_rows;
        }
        return all;
      };
      CHECK(by_levels(b.split) == by_levels(b.one));
      b.check_each(slot, 900, 3);
    }
  }

  TEST_CASE("f32: a model's logits, and those after a saved state, in either place") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      const auto engine_of = [&](CachePlace place) {
        recipe::Cache cache = kind.cache;
        cache.place = place;
        return make_engine(small_model("llama-3.1"),
                           {.max_seqs = 2, .max_tokens = 2048, .caches = {cache}});
      };
      const auto one = engine_of(CachePlace::device), split = engine_of(CachePlace::host);
      const Ids prompt = random_ids(*one, 400, 1), after = random_ids(*one, 40, 2);
      for (const size_t chunk : {size_t{0}, size_t{150}})
        CHECK(run_alone(*split, prompt, after, chunk) == run_alone(*one, prompt, after, chunk));

      const TemporaryFolder folder;
      const int slot = split->cache().create();
      prefill(*split, slot, prompt);
      extend_each(*split, slot, std::span(after).first(20));
      Ids text = prompt;
      text.insert(text.end(), after.begin(), after.begin() + 20);
      decode::save_state(folder / "state", *split, slot, text);
      const std::vector<Row> want = extend_each(*split, slot, std::span(after).subspan(20));
      const auto saved = decode::open_state(folder / "state", split->files(), DType::f32);
      const int again = decode::restore_state(saved, *split, split->cache().all_readers());
      // The saved text is one prompt, whose last tokens are indexed, too: as they are from one.
      const int from_one = decode::restore_state(saved, *one, one->cache().all_readers());
      const std::vector<Row> restored = extend_each(*split, again, std::span(after).subspan(20));
      CHECK(restored == extend_each(*one, from_one, std::span(after).subspan(20)));
      CHECK(want.size() == restored.size());
    }
  }

  TEST_CASE("f32: a prompt that is given up after some layers leaves no trace") {
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      recipe::Cache cache = kind.cache;
      cache.place = CachePlace::host;
      const auto engine = make_engine(small_model("llama-3.1"),
                                      {.max_seqs = 2, .max_tokens = 2048, .caches = {cache}});
      const Ids prompt = random_ids(*engine, 900, 1), other = random_ids(*engine, 700, 2),
                after = random_ids(*engine, 4, 3);
      const auto give_up = [&](int slot, const Ids& ids) {
        const decode::SeqTokens seq{slot, ids, true};
        try {
          engine->prefill({&seq, 1}, {}, [](int64_t) { return false; });
          FAIL("the prefill was not interrupted");
        } catch (const Error& e) {
          CHECK(e.kind() == ErrorKind::interrupted);
        }
      };
      // Of a new text, and of one that has an index.
      const int plain = engine->cache().create(), slot = engine->cache().create();
      const Row want = prefill(*engine, plain, prompt);
      give_up(slot, other);
      CHECK(engine->cache().length(slot) == 0);
      CHECK(prefill(*engine, slot, prompt) == want);
      give_up(slot, other);
      CHECK(engine->cache().length(slot) == 900);
      CHECK(extend_each(*engine, slot, after) == extend_each(*engine, plain, after));
    }
  }

  TEST_CASE("forks of a text that is all near have room for copies of it") {
    constexpr int kShared = 900, kForks = 8;
    recipe::Cache cache = sparse_cache(CacheKind::lsh, 4, 1000);
    cache.place = CachePlace::host;
    PolicyRig rig({.max_seqs = kForks + 1,
                   .max_tokens = kShared + 40,
                   .max_rows = kShared,
                   .total_tokens = kShared + kForks * 40},
                  {cache}, cone_data(32));
    const int slot = rig.sequence(tokens(0, kShared));
    const std::vector<Row> want = rig.extend_each(slot, tokens(2000, 30));
    rig.cache.truncate(slot, kShared);
    for (int i = 0; i < kForks; ++i) {
      const int fork = rig.cache.fork(slot, rig.cache.readers_of(slot));
      // A prompt goes on with its last token: all of it is far, and near again by itself.
      rig.cache.truncate(fork, kShared - 1);
      rig.prefill(fork, tokens(kShared - 1, 1));
      CHECK(rig.extend_each(fork, tokens(2000, 30)) == want);
    }
  }

  TEST_CASE("near keys are bounded by what ranges read, whatever a text's length") {
    recipe::Cache cache = sparse_cache(CacheKind::lsh, 4, kRecent);
    cache.place = CachePlace::host;
    MemoryPlan at_4k, at_64k;
    for (const auto& [plan, tokens] : {std::pair{&at_4k, 4096}, std::pair{&at_64k, 65536}})
      kv::Cache::plan(
          {.geometry =
               {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .dtype = DType::f32},
           .max_tokens = tokens,
           .total_tokens = tokens,
           .max_rows = 512,
           .policies = {cache}},
          *plan);
    CHECK(at_4k.find("kv/near/k")->bytes == at_64k.find("kv/near/k")->bytes);
    CHECK(at_64k.find("kv/host/k")->bytes == size_t{65536} * 2 * 2 * 32 * sizeof(float));
    CHECK(at_64k.find("kv/prompt/k")->bytes == at_64k.find("kv/host/k")->bytes / 2);  // a layer
  }

  TEST_CASE("policies that keys in host memory do not suit are an error of kind recipe") {
    recipe::Cache cache = sparse_cache(CacheKind::lsh);
    cache.place = CachePlace::host;
    MemoryPlan plan;
    CHECK_THROWS_WITH_AS(
        kv::Cache::plan({.geometry = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32},
                         .max_tokens = 256,
                         .total_tokens = 256,
                         .max_rows = 16,
                         .policies = {cache, recipe::Cache{}}},
                        plan),
        "cache.place: is host, which is not supported with 2 policies over one KV cache", Error);
    for (const CacheKind kind : {CacheKind::topk, CacheKind::streaming}) {
      recipe::Cache other = sparse_cache(kind);
      other.place = CachePlace::host;
      CHECK_THROWS_WITH_AS(
          kv::Cache::plan(
              {.geometry = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32},
               .max_tokens = 256,
               .total_tokens = 256,
               .max_rows = 16,
               .policies = {other}},
              plan),
          ("cache.place: is host, which is not supported by kind " + recipe::yaml_text(kind))
              .c_str(),
          Error);
    }
  }
}
