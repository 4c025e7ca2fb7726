// Rounds over a target whose policy indexes keys, in a GPU's memory or in the host's: the text of
// plain decoding, past the tokens that move into an index.
#include "engine_pair.h"
#include "io/file.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Attend;
using recipe::Cache;
using recipe::CacheKind;
using recipe::CachePlace;

namespace {

constexpr int kRoll = 1024, kDocument = 700;

Cache cache_of(CacheKind kind, CachePlace place, Attend attend = Attend::automatic) {
  Cache c;
  c.kind = kind;
  c.recent = {32};
  c.dense_layers = {0};
  c.place = place;
  c.attend = attend;
  if (attend == Attend::cpu) c.index = recipe::IndexPlace::host;
  return c;
}

std::vector<Cache> caches() {
  using enum CacheKind;
  return {cache_of(lsh, CachePlace::device),
          cache_of(hybrid, CachePlace::device),
          cache_of(lsh, CachePlace::host, Attend::cpu),
          cache_of(hybrid, CachePlace::host, Attend::cpu),
          cache_of(lsh, CachePlace::host, Attend::gpu),
          cache_of(hybrid, CachePlace::host, Attend::gpu)};
}

/// Texts that go on from one document, whose index they share, until what they add moves into it.
class Texts {
 public:
  explicit Texts(decode::Engine& engine) : engine_(engine) {
    const std::string log = io::read_file(source_dir() / "recipes/demo/lighthouse-logbook.txt");
    Ids ids = engine.tokenizer()->encode(log.substr(0, 12000));
    REQUIRE(ids.size() > kDocument + kRoll);
    document_ = part_of(ids, 0, kDocument);
    slot_ = engine.cache().create();
    (void)prefill(engine, slot_, document_);
    for (const size_t before : {size_t{20}, size_t{45}})
      requests_.push_back({.prefix_slot = slot_,
                           .prefix = document_,
                           .tokens = part_of(ids, kDocument, kRoll - before)});
  }
  ~Texts() { engine_.cache().release(slot_); }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  std::vector<Ids> write(size_t n, decode::Decoder* decoder = nullptr) const {
    return generate(engine_, {requests_.begin(), requests_.begin() + static_cast<long>(n)},
                    rules(80), decoder)
        .ids;
  }

 private:
  decode::Engine& engine_;
  Ids document_;
  int slot_;
  std::vector<decode::Request> requests_;
};

}  // namespace

TEST_SUITE("gpu/rounds/hosted") {
  TEST_CASE("f32: chains and trees, one text and two, write what plain decoding writes") {
    for (const Cache& cache : caches()) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.place));
      CAPTURE(recipe::yaml_text(cache.attend));
      Setup setup{.max_seqs = 3, .max_tokens = 2048, .caches = {cache}, .device = kGpu};
      const auto target = make_engine(tiny_model("tiny-16m"), setup);
      setup.caches = {{}};
      setup.queue = target->queue();
      const auto draft = make_engine(tiny_model("tiny-2m"), setup);
      const Texts texts(*target);
      for (const size_t n : {size_t{1}, size_t{2}}) {
        CAPTURE(n);
        const std::vector<Ids> plain = texts.write(n);
        for (const speculate::TokenTree& tree : {speculate::chain_tree(5), tree_of(kBushy)}) {
          CAPTURE(tree.size());
          for (const bool ahead : {false, true}) {
            CAPTURE(ahead);
            const auto rounds = speculate::model_rounds(*target, *draft, tree, {.ahead = ahead});
            CHECK(texts.write(n, rounds.get()) == plain);
            CHECK(rounds->stats().accepted > 0);
          }
        }
        const auto lookup = speculate::lookup_rounds(*target, 3, 6);
        CHECK(texts.write(n, lookup.get()) == plain);
      }
    }
  }

  TEST_CASE("rounds wait for one another where the CPU attends, and only there") {
    const auto depth_of = [](const Cache& cache) {
      Setup setup{.max_seqs = 2, .max_tokens = 1024, .caches = {cache}, .device = kGpu};
      const auto target = make_engine(tiny_model("tiny-16m"), setup);
      setup.caches = {{}};
      setup.queue = target->queue();
      const auto draft = make_engine(tiny_model("tiny-2m"), setup);
      const auto rounds = speculate::model_rounds(*target, *draft, speculate::chain_tree(4), {});
      // A first round has read the draft's text.
      (void)generate(*target, {request(random_ids(*target, 50, 1))}, rules(8), rounds.get());
      return rounds->depth();
    };
    CHECK(depth_of(cache_of(CacheKind::lsh, CachePlace::host, Attend::cpu)) == 1);
    CHECK(depth_of(cache_of(CacheKind::lsh, CachePlace::host, Attend::gpu)) == 2);
    CHECK(depth_of(cache_of(CacheKind::hybrid, CachePlace::host, Attend::gpu)) == 2);
  }

  TEST_CASE("bf16: a batch of chains goes to the end of its texts, and leaves nothing") {
    for (const Cache& cache : caches()) {
      CAPTURE(recipe::yaml_text(cache.kind));
      CAPTURE(recipe::yaml_text(cache.place));
      Setup setup{.compute = DType::bf16,
                  .max_seqs = 3,
                  .max_tokens = 2048,
                  .caches = {cache},
                  .device = kGpu};
      const auto target = make_engine(tiny_model("tiny-16m"), setup);
      setup.caches = {{}};
      setup.queue = target->queue();
      const auto draft = make_engine(tiny_model("tiny-2m"), setup);
      const int pages = target->cache().store().free_pages();
      {
        const Texts texts(*target);
        const auto rounds = speculate::model_rounds(*target, *draft, speculate::chain_tree(5));
        for (const Ids& ids : texts.write(2, rounds.get())) CHECK(ids.size() == 80);
        CHECK(rounds->stats().accepted > 0);
      }
      CHECK(target->cache().store().free_pages() == pages);
    }
  }
}
