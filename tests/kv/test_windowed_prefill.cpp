// Prompts that are read under a window: cache.prefill windowed.
#include <doctest/doctest.h>

#include "error_text.h"
#include "io/file.h"
#include "model/spec/context.h"
#include "rounds_testing.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

recipe::Cache windowed(int sinks, int recent, bool reposition = false) {
  recipe::Cache c = streaming(sinks, recent, reposition);
  c.prefill = recipe::Prefill::windowed;
  return c;
}

/// Logits of the last token of ids, and of some more.
std::vector<Row> rows_of(decode::Engine& engine, const Ids& ids, const Ids& after, size_t chunk) {
  const int slot = engine.cache().create();
  std::vector<Row> rows = {prefill(engine, slot, ids, chunk)};
  for (Row& row : extend_each(engine, slot, after)) rows.push_back(std::move(row));
  engine.cache().release(slot);
  return rows;
}

/// The small model, said to be made for texts of that length.
std::filesystem::path model_made_for(const TemporaryFolder& folder, int tokens) {
  for (const auto& file : std::filesystem::directory_iterator(small_model("llama-3.1")))
    std::filesystem::copy(file.path(), folder.path() / file.path().filename());
  std::string config = io::read_file(folder / "config.json");
  const std::string key = "\"max_position_embeddings\": ";
  const size_t at = config.find(key) + key.size();
  config.replace(at, config.find_first_not_of("0123456789", at) - at, std::to_string(tokens));
  folder.write("config.json", config);
  return folder.path();
}

}  // namespace

TEST_SUITE("kv/windowed-prefill") {
  TEST_CASE("f32: a prompt in any chunks gives what its tokens one by one give under the policy") {
    for (const std::string name :
         {"llama-3.1", "mistral-window", "qwen2-layer-types", "qwen3-tied"})
      for (const recipe::Cache& c :
           {windowed(4, 64), windowed(0, 30), windowed(70, 3, true), windowed(4, 64, true)}) {
        CAPTURE(name);
        CAPTURE(static_cast<int>(c.sinks));
        const auto engine = make_engine(small_model(name), {.caches = {c}});
        const Ids ids = random_ids(*engine, 170, 5), after = random_ids(*engine, 3, 6);
        const int slot = engine->cache().create();
        std::vector<Row> want = {extend_each(*engine, slot, ids).back()};
        for (Row& row : extend_each(*engine, slot, after)) want.push_back(std::move(row));
        engine->cache().release(slot);
        for (const size_t chunk : {0u, 7u, 64u, 169u}) {
          CAPTURE(chunk);
          CHECK(same(rows_of(*engine, ids, after, chunk), want));
        }
        recipe::Cache dense = c;
        dense.prefill = recipe::Prefill::dense;
        const auto other = make_engine(small_model(name), {.caches = {dense}});
        CHECK_FALSE(same(rows_of(*other, ids, after, 0), want));
      }
  }

  TEST_CASE("prompts of a batch, some cut and some not, in one prefill") {
    const auto engine = make_engine(small_model("llama-3.1"), {.caches = {windowed(4, 64, true)}});
    kv::Cache& cache = engine->cache();
    const Ids ids = random_ids(*engine, 400, 5);
    const std::span<const int32_t> all(ids);
    const int cut = cache.create(), fresh = cache.create();
    prefill(*engine, cut, all.first(200));
    std::vector<Row> rows(2);
    const decode::SeqTokens parts[] = {{fresh, all.first(90), true}, {cut, all.subspan(200), true}};
    engine->prefill(parts, [&](std::span<const size_t> which, const Tensor& logits) {
      for (size_t i = 0; i < which.size(); ++i)
        rows[which[i]] = row_of(engine->on_host(logits), static_cast<int64_t>(i));
    });
    const int a = cache.create(), b = cache.create();
    CHECK(same(rows[0], prefill(*engine, a, all.first(90))));
    CHECK(same(rows[1], prefill(*engine, b, all)));
  }

  TEST_CASE("a sequence holds its window and the rows of a chunk, however long its text is") {
    const int n = 2000;
    const auto engine =
        make_engine(small_model("llama-3.1"), {.chunk = 64,
                                               .max_seqs = 1,
                                               .max_tokens = n,
                                               .caches = {windowed(4, 60, true)},
                                               .total_tokens = 4 + 60 + 64 + 3 * kPageTokens});
    const int slot = engine->cache().create();
    const Ids ids = random_ids(*engine, n, 1);
    CHECK(prefill(*engine, slot, ids).size() == 384);
    CHECK(live_ranges(engine->cache(), slot).front() == std::pair{0, kPageTokens});
    int held = 0;
    for (const auto& [begin, end] : live_ranges(engine->cache(), slot)) held += end - begin;
    CHECK(held <= 4 * kPageTokens);
  }

  TEST_CASE("a text that is repeated beyond the window counts positions within it") {
    // Rotations tell distances alone: what stands before the window and the sinks does not show.
    const auto engine =
        make_engine(small_model("llama-3.1"),
                    {.max_seqs = 2, .max_tokens = 2048, .caches = {windowed(0, 5, true)}});
    // 3 layers that see 4 tokens back each: 12 tokens are all that a row depends on.
    const Ids tail = random_ids(*engine, 20, 2);
    Ids near = random_ids(*engine, 10, 3), far = random_ids(*engine, 1900, 4);
    for (Ids* text : {&near, &far}) text->insert(text->end(), tail.begin(), tail.end());
    const int a = engine->cache().create(), b = engine->cache().create();
    // Angles are rounded to f32: those of position 2,000 to 1e-4 radians.
    CHECK(max_difference(prefill(*engine, a, near), prefill(*engine, b, far)) <= 1e-3);
  }

  TEST_CASE("greedy text behind more than the draft was made for is the target's, in less memory") {
    const TemporaryFolder long_one;
    const Setup setup{.chunk = 128, .max_seqs = 2, .max_tokens = 1700};
    const auto target = make_engine(model_made_for(long_one, 4096), setup);
    Setup under = setup;
    under.caches = {windowed(4, 100, true)};
    under.total_tokens = 2 * (4 + 100 + 3 * kPageTokens) + 128;
    const auto draft = make_engine(small_model("llama-3.1"), under);  // made for 512
    std::vector<decode::Request> requests;
    for (const int n : {1600, 30, 900})
      requests.push_back(request(random_ids(*target, n, static_cast<uint64_t>(n))));
    const Generated plain = test::generate(*target, requests, rules(40));
    for (const auto& tree : {speculate::chain_tree(4), tree_of(kBushy)}) {
      const auto rounds = speculate::model_rounds(*target, *draft, tree);
      CHECK(test::generate(*target, requests, rules(40), rounds.get()).ids == plain.ids);
      CHECK(rounds->stats().accepted > 0);
    }
    const auto pages = [](const decode::Engine& e) { return e.cache().store().spec().n_pages; };
    CHECK(3 * pages(*draft) < pages(*target));
  }

  TEST_CASE("which models read texts of any length so") {
    const auto engine = make_engine(small_model("llama-3.1"));
    const model::ModelConfig& config = engine->config();
    const auto reads = [&](const recipe::Cache& c) {
      return model::reads_any_length(config, c, "draft.cache");
    };
    CHECK(reads(windowed(4, 64, true)));
    CHECK(reads(windowed(0, 64)));
    CHECK_FALSE(reads(windowed(4, 64)));  // sinks at their true distance
    CHECK_FALSE(reads(streaming(4, 64, true)));
    CHECK_FALSE(reads({}));
    CHECK_THROWS_WITH_AS((void)reads(windowed(4, 509, true)),
                         "draft.cache: sinks and recent are 513 tokens, but llama-3.1 supports 512",
                         Error);
    CHECK_THROWS_WITH_AS(
        (void)make_engine(small_model("llama-3.1"), {.caches = {{}, windowed(4, 64)}}),
        "cache.prefill: is windowed, but 2 policies share the KV cache of the prompt, which must "
        "be dense",
        Error);
  }
}
