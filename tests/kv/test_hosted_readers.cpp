// A second reader of keys in host memory: chunks of a text from copies near the forward, and a
// reading of all keys. Every bit is that of keys in one place.
#include <doctest/doctest.h>

#include "decode/state.h"
#include "error_text.h"
#include "policy_rig.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Attend;
using recipe::Cache;
using recipe::CachePlace;

namespace {

constexpr int kAll = 0, kChunks = 1;  // readings

/// n_resident  layers whose keys are not in host memory either way
Cache full(CachePlace place, Attend attend, int n_resident = 0) {
  Cache c;
  c.place = place;
  if (place == CachePlace::host) {
    c.attend = attend;
    c.resident_layers = {n_resident};
  }
  return c;
}

PolicyRig rig_of(CachePlace place, const Cache& chunks, Attend attend, DType dtype = DType::f32,
                 int max_seqs = 3, int n_resident = 0, int max_draft_rows = 16) {
  return {
      {.geometry = {.n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .dtype = dtype},
       .max_seqs = max_seqs,
       .max_tokens = 1536,
       .max_rows = 512,
       .max_draft_rows = max_draft_rows},
      {full(place, attend, n_resident), chunks},
      cone_data(32)};
}

std::vector<Cache> choices() {
  std::vector<Cache> all = {retrieval(96, 8), retrieval(40, 1), retrieval(200, 64)};
  all.push_back(retrieval(96, 4));
  all.back().retrieval.group = recipe::ScoreGroup::max;
  all.back().retrieval.query = recipe::ChoosingQuery::window;
  all.back().retrieval.force_recent = {10};
  all.back().retrieval.rebuild = {.tokens = 12};
  return all;
}

/// Rows of several sequences under a reading, all of them kept or none.
struct Rows {
  std::vector<int> slots;
  std::vector<Ids> ids;
  int reading = kAll;
  bool kept = true;
};
std::vector<Row> rows_of(PolicyRig& rig, const Rows& rows) {
  std::vector<kv::SeqRows> of_seqs;
  Ids all;
  for (size_t b = 0; b < rows.slots.size(); ++b) {
    of_seqs.push_back({rows.slots[b], static_cast<int>(rows.ids[b].size())});
    all.insert(all.end(), rows.ids[b].begin(), rows.ids[b].end());
  }
  const kv::Step step =
      rig.cache.begin({.rows = of_seqs, .reading = kv::Reading{.keys = rows.reading}});
  std::vector<Row> out = rig.attend(step, all);
  if (rows.kept) rig.cache.commit(step);
  return out;
}

/// The same calls on keys in one place, and in host memory.
struct Both {
  explicit Both(const Cache& chunks, Attend by = Attend::gpu, DType dtype = DType::f32,
                int max_seqs = 3, int n_resident = 0)
      : attend(by),
        one(rig_of(CachePlace::device, chunks, by, dtype, max_seqs)),
        split(rig_of(CachePlace::host, chunks, by, dtype, max_seqs, n_resident)) {}

  Attend attend;
  PolicyRig one, split;

  template <class F>
  void each(const F& f) {
    f(one);
    f(split);
  }
  int sequence(const Ids& ids, size_t chunk = 0) {
    const int slot = one.cache.create(one.cache.all_readers());
    REQUIRE(split.cache.create(split.cache.all_readers()) == slot);
    each([&](PolicyRig& rig) { rig.prefill(slot, ids, chunk); });
    return slot;
  }
  void prefill(int slot, const Ids& ids) {
    each([&](PolicyRig& rig) { rig.prefill(slot, ids); });
  }
  int fork(int slot) {
    const int child = one.cache.fork(slot, one.cache.readers_of(slot));
    REQUIRE(split.cache.fork(slot, split.cache.readers_of(slot)) == child);
    return child;
  }
  void truncate(int slot, int n) {
    each([&](PolicyRig& rig) { rig.cache.truncate(slot, n); });
  }
  void release(int slot) {
    each([&](PolicyRig& rig) { rig.cache.release(slot); });
  }
  void check(const Rows& rows) {
    const std::vector<Row> want = rows_of(one, rows), got = rows_of(split, rows);
    REQUIRE(all_finite(want));
    if (rows.reading == kAll && attend == Attend::cpu)
      REQUIRE(max_difference(got, want) <= 1e-5);  // states of two ranges merge
    else
      REQUIRE(got == want);
  }
  /// Rounds: drafts of four tokens that are dropped, then as many committed ones as asked for.
  void rounds(const std::vector<int>& slots, int first, int n, int tokens_each = 1) {
    for (int i = 0; i < n; ++i) {
      std::vector<Ids> drafted, committed;
      for (const int slot : slots) {
        drafted.push_back(tokens(50000 + first + i * 10 + slot, 4));
        committed.push_back(tokens(first + slot * 4000 + i * tokens_each, tokens_each));
      }
      check({slots, drafted, kChunks, false});
      check({slots, committed, kAll, true});
    }
  }
};

}  // namespace

TEST_SUITE("kv/hosted_readers") {
  TEST_CASE("prompts of any length, and what follows them") {
    for (const Attend attend : {Attend::gpu, Attend::cpu})
      for (const Cache& chunks : choices()) {
        CAPTURE(chunks.retrieval.budget.value);
        CAPTURE(chunks.retrieval.chunk);
        CAPTURE(recipe::yaml_text(attend));
        Both b(chunks, attend);
        for (const int length : {1, 40, 64, 96, 97, 205, 700}) {
          CAPTURE(length);
          const int slot = b.sequence(tokens(0, length), length == 700 ? 150 : 0);
          b.rounds({slot}, 1000, 130);
          b.rounds({slot}, 2000, 20, 7);
          b.check({{slot}, {tokens(9000, 90)}, kAll, true});
          b.rounds({slot}, 3000, 3);
          b.release(slot);
        }
      }
  }

  TEST_CASE("bf16, and batches of texts of several lengths") {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(dtype_name(dtype));
      Both b(choices()[0], Attend::gpu, dtype);
      const std::vector<int> slots = {b.sequence(tokens(0, 500)), b.sequence(tokens(600, 30)),
                                      b.sequence(tokens(700, 97))};
      b.rounds(slots, 1000, 120);
      b.rounds({slots[2], slots[0]}, 2000, 20, 5);
    }
  }

  TEST_CASE("forks of one document: each chooses for itself, by its own question and later") {
    for (const Cache& chunks : choices()) {
      CAPTURE(chunks.retrieval.chunk);
      Both b(chunks, Attend::gpu, DType::f32, 5);
      for (const int length : {300, 512, 60}) {
        CAPTURE(length);
        const int document = b.sequence(tokens(0, length));
        std::vector<int> forks;
        for (const int more : {1, 20, 100}) {
          forks.push_back(b.fork(document));
          b.prefill(forks.back(), tokens(5000 + 100 * more, more));
        }
        b.rounds(forks, 1000, 40);
        forks.push_back(b.fork(forks[1]));  // in the midst of its text
        b.rounds(forks, 2000, 110);
        b.release(document);
        b.release(forks[0]);
        forks.erase(forks.begin());
        b.rounds(forks, 3000, 10, 6);
        for (const int slot : forks) b.release(slot);
      }
    }
  }

  TEST_CASE("layers that stay on the device are read there, by lists of tokens") {
    for (const Cache& chunks : choices())
      for (const int resident : {1, 2, 3}) {
        CAPTURE(chunks.retrieval.chunk);
        CAPTURE(resident);
        Both b(chunks, Attend::gpu, DType::f32, 3, resident);
        const int slot = b.sequence(tokens(0, 500)), shorter = b.sequence(tokens(600, 30));
        b.rounds({slot, shorter}, 1000, 60);
        const int fork = b.fork(slot);
        b.prefill(fork, tokens(900, 40));
        b.rounds({fork, slot, shorter}, 2000, 40, 3);
        b.truncate(fork, b.one.cache.length(fork) - 2);
        b.rounds({fork, slot}, 3000, 10);
      }
  }

  TEST_CASE("texts that are cut where queries are held, and rows that are taken back") {
    for (const Cache& chunks : choices()) {
      CAPTURE(chunks.retrieval.chunk);
      Both b(chunks);
      const int slot = b.sequence(tokens(0, 400));
      for (const int back : {1, 2, 3, 9}) {
        b.rounds({slot}, 1000 * back, 33);
        b.truncate(slot, b.one.cache.length(slot) - back);
        b.rounds({slot}, 6000 + 100 * back, 5);
        b.each([&](PolicyRig& rig) { rig.cache.uncommit(slot, rig.cache.length(slot) - back); });
        b.rounds({slot}, 7000 + 100 * back, 5);
      }
      // Within the budget all is read.
      b.truncate(slot, 30);
      b.rounds({slot}, 8000, 200);
      b.prefill(slot, tokens(9000, 70));
      b.rounds({slot}, 9100, 30);
    }
  }

  TEST_CASE("chunks that gave way to generated tokens come back where these are taken back") {
    Both b(retrieval(96, 8));
    const int slot = b.sequence(tokens(0, 400));
    b.rounds({slot}, 1000, 15);
    for (const int n : {414, 409, 405, 401}) {
      CAPTURE(n);
      b.truncate(slot, n);
      b.check({{slot}, {tokens(5000, 3)}, kChunks, false});
    }
    b.rounds({slot}, 2000, 100);
  }

  TEST_CASE("a text whose queries are gone has its first chunk and its end for a token") {
    const Cache chunks = retrieval(96, 8);
    PolicyRig rig = rig_of(CachePlace::host, chunks, Attend::gpu);
    PolicyRig plain = rig_of(CachePlace::device, chunks, Attend::gpu);
    const int slot = rig.cache.create(rig.cache.all_readers());
    REQUIRE(plain.cache.create(plain.cache.all_readers()) == slot);
    for (PolicyRig* r : {&rig, &plain}) {
      r->prefill(slot, tokens(0, 700));
      r->cache.truncate(slot, 450);
    }
    CHECK(rig.cache.policy(kChunks).hosted()->range_begin(slot) ==
          368);  // 450 - 96 + 8, and up to a chunk
    CHECK(rig.cache.next_change(slot, {.keys = kChunks}) == 451);
    const Ids one = tokens(900, 1);
    const std::vector<Row> got = rows_of(rig, {{slot}, {one}, kChunks, false});
    // The same keys in one place, by positions alone.
    Cache window = sparse_cache(recipe::CacheKind::streaming, 8, 450 - 368 + 1);
    PolicyRig by_window(
        {.geometry = rig.cache.geometry(), .max_seqs = 1, .max_tokens = 1536, .max_rows = 512},
        {window}, cone_data(32));
    CHECK(max_difference(got, by_window.extend(by_window.sequence(tokens(0, 450)), one)) < 1e-5);
    for (PolicyRig* r : {&rig, &plain}) (void)rows_of(*r, {{slot}, {one}, kAll, true});
    for (int i = 0; i < 20; ++i) {
      const Rows drafted{{slot}, {tokens(2000 + i, 4)}, kChunks, false};
      CHECK(rows_of(rig, drafted) == rows_of(plain, drafted));
      const Rows more{{slot}, {tokens(3000 + i, 1)}, kAll, true};
      CHECK(rows_of(rig, more) == rows_of(plain, more));
    }
  }

  TEST_CASE("trees under either reading, in one step and by levels") {
    Both b(choices()[0]);
    const int slot = b.sequence(tokens(0, 600));
    b.rounds({slot}, 1000, 30);
    const std::vector<int> parent = {-1, 0, 0, 1, 1, 2, -1};
    const kv::SeqRows rows[] = {{slot, static_cast<int>(parent.size())}};
    const kv::Tree trees[] = {{parent}};
    for (const int reading : {kAll, kChunks}) {
      const kv::StepSpec spec{
          .rows = rows, .trees = trees, .reading = kv::Reading{.keys = reading}};
      const auto in_one = [&](PolicyRig& rig) {
        const kv::Step step = rig.cache.begin(spec);
        return rig.attend(step, tokens(700, rows[0].n_rows));
      };
      CHECK(in_one(b.split) == in_one(b.one));
      const auto by_levels = [&](PolicyRig& rig) {
        const std::vector<int> ends[] = {{1, 3, 7}};
        std::vector<Row> all;
        int first = 0;
        for (const kv::Step& level : rig.cache.begin_levels(spec, ends)) {
          for (Row& row : rig.attend(level, tokens(800 + first, level.n_rows)))
            all.push_back(std::move(row));
          first += level.n_rows;
        }
        return all;
      };
      CHECK(by_levels(b.split) == by_levels(b.one));
    }
    b.rounds({slot}, 2000, 3);
  }

  TEST_CASE("chosen again when too little is accepted") {
    Cache chunks = retrieval(96, 8);
    chunks.retrieval.rebuild = {.alpha = 0.5};
    Both b(chunks);
    const int slot = b.sequence(tokens(0, 600));
    for (const int accepted : {4, 0, 0, 3, 0}) {
      b.rounds({slot}, 1000 + 100 * accepted, 4);
      b.each([&](PolicyRig& rig) {
        for (int i = 0; i < 4; ++i) rig.cache.report_round(slot, accepted, 4);
      });
    }
    b.rounds({slot}, 3000, 5);
  }

  TEST_CASE("steps of the second reading leave the ring as it is, and take nothing over the link") {
    Both b(retrieval(96, 8));
    const int slot = b.sequence(tokens(0, 1000));
    const double page = kPageTokens * b.one.cache.geometry().token_bytes();
    const auto round = [&](int first, int drafts) {
      const double before = b.split.cache.residence().streamed_bytes();
      for (int i = 0; i < drafts; ++i)
        b.check({{slot}, {tokens(first + 10 * i, 3)}, kChunks, false});
      CHECK(b.split.cache.residence().streamed_bytes() == before);
      b.check({{slot}, {tokens(first, 1)}, kAll, true});
      return b.split.cache.residence().streamed_bytes() - before;
    };
    // Of three layers two are in the ring: see test_hosted_full.cpp.
    CHECK(round(2000, 0) == 4 * 14 * page);
    for (const int drafts : {0, 1, 5}) CHECK(round(3000 + 100 * drafts, drafts) == 2 * 14 * page);
    // A fork's question chooses as keys pass by.
    const double before = b.split.cache.residence().streamed_bytes();
    const int fork = b.fork(slot);
    b.prefill(fork, tokens(5000, 40));  // to 1,044 tokens
    CHECK(b.split.cache.residence().streamed_bytes() == before);
    b.rounds({fork}, 6000, 3);
  }

  TEST_CASE("chunks are chosen again from keys that pass by: nothing else comes over the link") {
    Cache again = retrieval(200, 8);
    again.retrieval.rebuild = {.tokens = 5};
    for (const int n_rows : {3, 8})  // of a round; 8: no more queries are held than needed
      for (const int resident : {0, 1}) {
        CAPTURE(n_rows);
        CAPTURE(resident);
        const auto rig = [&](const Cache& chunks) {
          return rig_of(CachePlace::host, chunks, Attend::gpu, DType::f32, 3, resident, 8);
        };
        PolicyRig never = rig(retrieval(200, 8)), often = rig(again);
        const int slot = never.cache.create(never.cache.all_readers());
        REQUIRE(often.cache.create(often.cache.all_readers()) == slot);
        for (PolicyRig* r : {&never, &often}) r->prefill(slot, tokens(0, 1000));
        int n_other = 0;  // rounds whose drafts read other keys
        for (int i = 0; i < 14; ++i) {
          CAPTURE(i);
          const Rows drafted{{slot}, {tokens(3000 + 10 * i, 8)}, kChunks, false},
              kept{{slot}, {tokens(5000 + 10 * i, n_rows)}, kAll, true};
          n_other += rows_of(often, drafted) != rows_of(never, drafted);
          const double before =
              often.cache.residence().streamed_bytes() - never.cache.residence().streamed_bytes();
          // A step that is not kept comes before one that is.
          for (const bool is_kept : {false, true}) {
            const Rows rows{kept.slots, kept.ids, kAll, is_kept};
            CHECK(rows_of(often, rows) == rows_of(never, rows));
          }
          CHECK(often.cache.residence().streamed_bytes() -
                    never.cache.residence().streamed_bytes() ==
                before);
        }
        CHECK(n_other > 8);
      }
  }

  TEST_CASE("forks that all choose have room, and near keys stay few at any length of the text") {
    for (const int budget : {96, 200}) {
      constexpr int kForks = 8;
      Both b(retrieval(budget, 8), Attend::gpu, DType::f32, kForks + 1);
      const int document = b.sequence(tokens(0, 800));
      std::vector<int> forks;
      for (int i = 0; i < kForks; ++i) {
        forks.push_back(b.fork(document));
        b.prefill(forks.back(), tokens(3000 + 200 * i, 30 + i));
      }
      b.rounds(forks, 10000, 30, 12);
    }
    MemoryPlan at_4k, at_64k;
    for (const auto& [plan, n] : {std::pair{&at_4k, 4096}, std::pair{&at_64k, 65536}})
      kv::Cache::plan(
          {.geometry =
               {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .dtype = DType::f32},
           .max_tokens = n,
           .total_tokens = n,
           .max_rows = 512,
           .max_extend_rows = 16,
           .max_draft_rows = 16,
           .policies = {full(CachePlace::host, Attend::gpu), retrieval(1024, 8)}},
          *plan);
    // Copies and near keys of a text share pages: little more than the budget.
    const size_t page = size_t{2} * 2 * 64 * 32 * sizeof(float);
    CHECK(at_4k.find("kv/near/k")->bytes == at_64k.find("kv/near/k")->bytes);
    CHECK(at_64k.find("kv/near/k")->bytes == (17 + 5) * page);
  }

  TEST_CASE("f32: a prompt that is given up after some layers leaves no trace, nor a saved state") {
    const Cache chunks = retrieval(96, 8);
    const auto engine_of = [&](CachePlace place) {
      return make_engine(
          small_model("llama-3.1"),
          {.max_seqs = 3, .max_tokens = 1024, .caches = {full(place, Attend::gpu), chunks}});
    };
    const auto one = engine_of(CachePlace::device), split = engine_of(CachePlace::host);
    const Ids prompt = random_ids(*one, 600, 1), other = random_ids(*one, 400, 2),
              after = random_ids(*one, 60, 3);
    const auto create = [](decode::Engine& e) { return e.cache().create(e.cache().all_readers()); };
    /// Logits under the second reading of tokens that are kept under the first.
    const auto go_on = [&](decode::Engine& e, int slot, size_t from, size_t n) {
      std::vector<Row> rows;
      for (size_t i = from; i < from + n; ++i) {
        const kv::SeqRows one_row[] = {{slot, 1}};
        for (const int reading : {kChunks, kAll}) {
          const kv::Step step =
              e.cache().begin({.rows = one_row, .reading = kv::Reading{.keys = reading}});
          e.model().forward(std::span(after).subspan(i, 1), step, e.cache());
          const int32_t row[] = {0};
          rows.push_back(row_of(e.logits(row), 0));
          if (reading == kAll) e.cache().commit(step);
        }
      }
      return rows;
    };
    const auto give_up = [&](int slot) {
      const decode::SeqTokens seq{slot, other, true};
      CHECK_THROWS_AS(split->prefill({&seq, 1}, {}, [](int64_t) { return false; }), Error);
    };
    // Of a new text, and of one that has chosen.
    const int slot = create(*one);
    REQUIRE(create(*split) == slot);
    give_up(slot);
    CHECK(split->cache().length(slot) == 0);
    CHECK(prefill(*split, slot, prompt) == prefill(*one, slot, prompt));
    give_up(slot);
    CHECK(split->cache().length(slot) == 600);
    CHECK(go_on(*split, slot, 0, 30) == go_on(*one, slot, 0, 30));

    const TemporaryFolder folder;
    Ids text = prompt;
    text.insert(text.end(), after.begin(), after.begin() + 30);
    decode::save_state(folder / "state", *split, slot, text);
    const auto saved = decode::open_state(folder / "state", split->files(), DType::f32);
    const auto restored = [&](decode::Engine& e) {
      return decode::restore_state(saved, e, e.cache().all_readers());
    };
    const int again = restored(*one);
    REQUIRE(restored(*split) == again);
    CHECK(go_on(*split, again, 30, 20) == go_on(*one, again, 30, 20));
  }

  TEST_CASE("a plan for a GPU: no means, and there copies alone, in the pages of near keys") {
    const kv::Cache::Spec spec{
        .geometry = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32},
        .max_tokens = 4096,
        .total_tokens = 4096,
        .max_rows = 512,
        .policies = {full(CachePlace::host, Attend::gpu), retrieval(1024, 8)},
        .device = {Device::Kind::cuda, 0},
        .multiprocessors = 132};
    MemoryPlan plan;
    kv::Cache::plan(spec, plan);
    CHECK(plan.find("index/1 retrieval.means") == nullptr);
    CHECK(plan.find("index/1 retrieval.choosing")->device == spec.device);
    CHECK(plan.find("index/1 retrieval.tables")->device == spec.device);
    CHECK(plan.find("index/1 retrieval.derived pages/k") == nullptr);
    CHECK(plan.find("kv/near/k")->device == spec.device);
    CHECK(kv::Cache::pinned_bytes(spec, plan) ==
          plan.find("kv/host/k")->bytes + plan.find("kv/host/v")->bytes);
  }

  TEST_CASE("readings that keys in host memory do not suit are an error of kind recipe") {
    const auto plan_of = [](std::vector<Cache> policies) {
      MemoryPlan plan;
      kv::Cache::plan({.geometry = {.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 32},
                       .max_tokens = 256,
                       .total_tokens = 256,
                       .max_rows = 16,
                       .policies = std::move(policies)},
                      plan);
    };
    const Cache host = full(CachePlace::host, Attend::gpu);
    for (const recipe::CacheKind kind :
         {recipe::CacheKind::full, recipe::CacheKind::streaming, recipe::CacheKind::snapkv,
          recipe::CacheKind::quest, recipe::CacheKind::lsh, recipe::CacheKind::hybrid})
      CHECK_THROWS_WITH_AS(
          plan_of({host, sparse_cache(kind)}),
          ("spec.draft.cache.kind: is " + recipe::yaml_text(kind) +
           ", which does not support a KV cache that the target keeps in host memory")
              .c_str(),
          Error);
    Cache dense = retrieval(64, 8);
    dense.dense_layers = {1};
    CHECK_THROWS_WITH_AS(plan_of({host, dense}),
                         "cache.dense_layers: layer 1 reads all keys in every draft step, but they "
                         "are in host memory",
                         Error);
    CHECK_THROWS_AS(plan_of({retrieval(64, 8), host}), Error);
  }
}
