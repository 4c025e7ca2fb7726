// A second reading of keys in host memory, of chunks that a GPU has copies of: its logits, the ring
// of the first reading meanwhile, and rounds of both.
#include "decode/precision_runs.h"
#include "engine_pair.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;
using recipe::Attend;
using recipe::Cache;

namespace {

constexpr int kAll = 0, kChunks = 1;  // readings

Cache hosted(Attend attend, int n_resident = 0) {
  Cache c;
  c.resident_layers = {n_resident};
  c.place = recipe::CachePlace::host;
  c.attend = attend;
  return c;
}

std::unique_ptr<Engine> engine_of(const std::filesystem::path& model, const Cache& reads_by,
                                  const Cache& drafts_by, Setup setup = {}) {
  setup.max_seqs = 4;
  if (setup.max_tokens < 1100) setup.max_tokens = 1100;
  setup.caches = {reads_by, drafts_by};
  return make_engine(model, setup);
}

int create(Engine& engine) { return engine.cache().create(engine.cache().all_readers()); }

/// Logits of rows of one text under a reading.
std::vector<Row> rows_of(Engine& engine, int slot, const Ids& ids, int reading) {
  const kv::SeqRows rows[] = {{slot, static_cast<int>(ids.size())}};
  const kv::Step step =
      engine.cache().begin({.rows = rows, .reading = kv::Reading{.keys = reading}});
  engine.model().forward(ids, step, engine.cache());
  std::vector<int32_t> all(ids.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  const Tensor logits = engine.on_host(engine.logits(all));
  std::vector<Row> out;
  for (int64_t i = 0; i < logits.rows(); ++i) out.push_back(row_of(logits, i));
  if (reading == kAll) engine.cache().commit(step);
  return out;
}

/// Drafted rows and committed ones in turn, of a document, its forks, and a text that is cut.
/// chunks, all   get the logits of the readings
void run(Engine& engine, std::vector<Row>& chunks, std::vector<Row>& all) {
  Ids text = real_text(1000);
  for (int32_t& id : text) id %= engine.config().vocab_size;
  size_t next = 0;
  const auto go_on = [&](int slot, int n) {
    for (int i = 0; i < n; ++i) {
      next = (next + 7) % 900;
      for (Row& row : rows_of(engine, slot, part_of(text, next, 3), kChunks))
        chunks.push_back(std::move(row));
      for (Row& row : rows_of(engine, slot, part_of(text, next + 1, 1 + next % 2), kAll))
        all.push_back(std::move(row));
    }
  };
  const int document = create(engine), shorter = create(engine);
  (void)prefill(engine, document, part_of(text, 0, 600));
  (void)prefill(engine, shorter, part_of(text, 0, 90));
  go_on(document, 70);
  go_on(shorter, 30);  // past the budget
  const int fork = engine.cache().fork(document, engine.cache().readers_of(document));
  (void)prefill(engine, fork, part_of(text, 700, 30));
  go_on(fork, 20);
  go_on(document, 5);
  engine.cache().truncate(fork, engine.cache().length(fork) - 1);
  go_on(fork, 5);
  engine.cache().truncate(fork, 300);  // no queries are held
  go_on(fork, 5);
  for (const int slot : {document, shorter, fork}) engine.cache().release(slot);
}

Cache rebuilt(int every) {
  Cache c = retrieval(96, 8);
  c.retrieval.rebuild = {.tokens = every};
  return c;
}

}  // namespace

TEST_SUITE("gpu/rounds/hosted drafts") {
  TEST_CASE("f32: logits of chunks and of all keys equal the CPU's") {
    double worst = 0;
    for (const Cache& all_keys : {hosted(Attend::gpu), hosted(Attend::gpu, 1), hosted(Attend::cpu)})
      for (const std::string name : {"tiny-16m", "llama-3.1"})
        for (const int every : {0, 12}) {
          CAPTURE(recipe::yaml_text(all_keys.attend));
          CAPTURE(all_keys.n_resident());
          CAPTURE(name);
          CAPTURE(every);
          const auto model = name == "tiny-16m" ? tiny_model(name) : small_model(name);
          const Setup setup{.chunk = 256, .logit_rows = 4};
          Setup on_gpu = setup;
          on_gpu.device = kGpu;
          const auto cpu = engine_of(model, all_keys, rebuilt(every), setup),
                     gpu = engine_of(model, all_keys, rebuilt(every), on_gpu);
          std::vector<Row> chunks[2], all[2];
          run(*cpu, chunks[0], all[0]);
          run(*gpu, chunks[1], all[1]);
          REQUIRE(chunks[0].size() == chunks[1].size());
          CHECK(max_difference(chunks[1], chunks[0]) <= kF32Tolerance);
          CHECK(max_difference(all[1], all[0]) <= kF32Tolerance);
          worst = worse(worst, max_difference(chunks[1], chunks[0]));
        }
    MESSAGE("largest |GPU - CPU| of chunks " << worst);
  }

  TEST_CASE("f32, bf16: the first reading has the bits of keys on the GPU between the second") {
    for (const DType compute : {DType::f32, DType::bf16}) {
      CAPTURE(dtype_name(compute));
      const Setup setup{.compute = compute, .chunk = 256, .logit_rows = 4, .device = kGpu};
      const auto split = engine_of(tiny_model("tiny-16m"), hosted(Attend::gpu), rebuilt(12), setup),
                 one = engine_of(tiny_model("tiny-16m"), Cache{}, rebuilt(12), setup);
      std::vector<Row> chunks[2], all[2];
      run(*split, chunks[0], all[0]);
      run(*one, chunks[1], all[1]);
      CHECK(same(all[0], all[1]));
    }
  }

  // Where a layer takes long to copy, copies go on under steps of the second reading.
  TEST_CASE("bf16: the same where layers take long to copy, and those steps take no copies") {
    const Setup setup{.compute = DType::bf16,
                      .chunk = 2048,
                      .max_tokens = 12800,
                      .logit_rows = 4,
                      .device = kGpu};
    const auto split = engine_of("synthetic:llama-3.2-1b", hosted(Attend::gpu), retrieval(1024, 8),
                                 setup),
               one = engine_of("synthetic:llama-3.2-1b", Cache{}, retrieval(1024, 8), setup);
    std::vector<Row> rows[2];
    for (Engine* engine : {split.get(), one.get()}) {
      const int slot = create(*engine);
      (void)prefill(*engine, slot, random_ids(*engine, 12000, 1));
      for (int i = 0; i < 40; ++i) {
        const double before = engine->cache().residence().streamed_bytes();
        for (int draft = 0; draft < i % 4; ++draft)
          (void)rows_of(*engine, slot, random_ids(*engine, 4, static_cast<uint64_t>(i)), kChunks);
        CHECK(engine->cache().residence().streamed_bytes() == before);
        for (Row& row :
             rows_of(*engine, slot, random_ids(*engine, 3, 100 + static_cast<uint64_t>(i)), kAll))
          rows[engine == one.get() ? 1 : 0].push_back(std::move(row));
      }
    }
    CHECK(same(rows[0], rows[1]));
  }

  // Rounds ahead of each other: rows are moved on by work that the host does not wait for, over
  // borders of pages, too.
  TEST_CASE("f32: rounds of a separate draft over streamed keys write the text of plain decoding") {
    const Setup setup{.max_seqs = 3, .max_tokens = 1100, .device = kGpu};
    Setup on_host = setup;
    on_host.caches = {hosted(Attend::gpu)};
    const auto plain = make_engine(tiny_model("tiny-16m"), setup),
               split = make_engine(tiny_model("tiny-16m"), on_host);
    Setup of_draft = setup;
    of_draft.queue = split->queue();
    const auto draft = make_engine(tiny_model("tiny-2m"), of_draft);
    const Ids text = real_text(900);
    const std::vector<decode::Request> requests = {request(part_of(text, 0, 700)),
                                                   request(part_of(text, 300, 90))};
    const std::vector<Ids> want = generate(*plain, requests, rules(250)).ids;
    for (const speculate::TokenTree& tree : {speculate::chain_tree(3), speculate::chain_tree(8)}) {
      const auto rounds = speculate::model_rounds(*split, *draft, tree);
      CHECK(generate(*split, requests, rules(250), rounds.get()).ids == want);
    }
  }

  TEST_CASE("f32: rounds write the text of plain decoding over keys on the GPU") {
    const auto plain = engine_of(tiny_model("tiny-16m"), Cache{}, rebuilt(0), {.device = kGpu});
    const Ids text = real_text(900);
    const std::vector<decode::Request> requests = {request(part_of(text, 0, 700)),
                                                   request(part_of(text, 200, 500)),
                                                   request(part_of(text, 500, 60))};
    const std::vector<Ids> want = generate(*plain, requests, rules(120)).ids;
    for (const Attend attend : {Attend::gpu, Attend::cpu})
      for (const int every : {0, 20}) {
        CAPTURE(recipe::yaml_text(attend));
        CAPTURE(every);
        const auto split =
            engine_of(tiny_model("tiny-16m"), hosted(attend), rebuilt(every), {.device = kGpu});
        for (const speculate::TokenTree& tree : {speculate::chain_tree(6), tree_of(kBushy)}) {
          CAPTURE(tree.size());
          const auto rounds = speculate::model_rounds(*split, {*split, {.keys = kChunks}}, tree);
          CHECK(generate(*split, requests, rules(120), rounds.get()).ids == want);
          CHECK(rounds->stats().accepted > 0);
        }
      }
  }
}
