// Drafts by the target itself, which reads chunks of its keys near the forward, while all of these
// are in host memory: the text of plain decoding over keys in one place.
#include "decode/precision_runs.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;
using recipe::Attend;

namespace {

Ids part_of(const Ids& ids, size_t begin, size_t n) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin),
          ids.begin() + static_cast<std::ptrdiff_t>(begin + n)};
}

recipe::Cache hosted(Attend attend) {
  recipe::Cache c;
  c.place = recipe::CachePlace::host;
  c.attend = attend;
  return c;
}

std::vector<recipe::Cache> choices() {
  std::vector<recipe::Cache> all;
  for (const recipe::Rebuild rebuild :
       {recipe::Rebuild{}, recipe::Rebuild{.tokens = 20}, recipe::Rebuild{.alpha = 0.9}}) {
    all.push_back(retrieval(96, 8));
    all.back().retrieval.rebuild = rebuild;
  }
  return all;
}

std::unique_ptr<decode::Engine> engine_of(std::vector<recipe::Cache> caches) {
  return make_engine(tiny_model("tiny-2m"),
                     {.max_seqs = 4, .max_tokens = 600, .caches = std::move(caches)});
}

/// A text alone, and questions about a document.
std::vector<decode::Request> texts(decode::Engine& engine, int document) {
  const Ids text = real_text(700), shared = part_of(text, 0, 300);
  return {request(part_of(text, 100, 450)),
          {.prefix_slot = document, .prefix = shared, .tokens = part_of(text, 500, 20)},
          {.prefix_slot = document, .prefix = shared, .tokens = part_of(text, 600, 60)},
          request(random_ids(engine, 40, 3))};
}

int read_document(decode::Engine& engine) {
  const Ids shared = part_of(real_text(700), 0, 300);
  const int slot = engine.cache().create(engine.cache().all_readers());
  const decode::SeqTokens seq[] = {{slot, shared, true}};
  engine.prefill(seq, {});
  return slot;
}

}  // namespace

TEST_SUITE("speculate/hosted-drafts") {
  TEST_CASE("f32: with room for the whole text it proposes the target's own tokens") {
    check_wide_window(SelfPair(retrieval(4096, 8), {}, DType::f32, hosted(Attend::gpu)), 1, 1);
  }

  TEST_CASE("f32: two chunks, chosen again and again: the text is the target's") {
    recipe::Cache drafts_by = retrieval(5, 2);
    drafts_by.retrieval.rebuild = {.tokens = 5};
    check_narrow_window(SelfPair(drafts_by, {}, DType::f32, hosted(Attend::gpu)));
  }

  TEST_CASE(
      "f32: long texts and questions about one: the text and the drafts of keys in one place") {
    const auto plain = engine_of({{}});
    const int plain_document = read_document(*plain);
    const Generated want = generate(*plain, texts(*plain, plain_document), rules(80));
    for (const recipe::Cache& drafts_by : choices()) {
      CAPTURE(recipe::yaml_text(drafts_by.retrieval.rebuild));
      const auto one = engine_of({{}, drafts_by}),
                 by_gpu = engine_of({hosted(Attend::gpu), drafts_by}),
                 by_cpu = engine_of({hosted(Attend::cpu), drafts_by});
      const int document = read_document(*one);
      for (decode::Engine* split : {by_gpu.get(), by_cpu.get()})
        REQUIRE(read_document(*split) == document);
      for (const TokenTree& tree : {chain_tree(6), tree_of(kBushy)})
        for (const bool ahead : {false, true}) {
          CAPTURE(tree.size());
          CAPTURE(ahead);
          const auto accepted = [&](decode::Engine& engine) {
            const auto rounds = model_rounds(engine, {engine, {.keys = 1}}, tree, {.ahead = ahead});
            CHECK(generate(engine, texts(engine, document), rules(80), rounds.get()).ids ==
                  want.ids);
            return rounds->stats().accepted;
          };
          const int64_t on_one = accepted(*one);
          CHECK(on_one > 0);
          CHECK(accepted(*by_gpu) == on_one);
          CHECK(accepted(*by_cpu) > 0);
        }
    }
  }

  TEST_CASE("f32, drawn: the same tokens as with keys in one place") {
    const recipe::Cache drafts_by = choices()[1];
    const auto one = engine_of({{}, drafts_by}),
               split = engine_of({hosted(Attend::gpu), drafts_by});
    const int document = read_document(*one);
    REQUIRE(read_document(*split) == document);
    for (const float temperature : {0.6f, 1.0f}) {
      const auto write = [&](decode::Engine& engine) {
        const auto rounds = model_rounds(engine, {engine, {.keys = 1}}, tree_of(kBushy));
        return generate(engine, texts(engine, document), rules(100, temperature, 5), rounds.get())
            .ids;
      };
      CHECK(write(*split) == write(*one));
    }
  }
}
