#include <doctest/doctest.h>

#include "rounds_testing.h"

// Sirius' oracles, section 12 of its description, for rules that keep the target's text and for
// floors.
using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

recipe::Sparse griffin(double keep, double refresh = 0) {
  recipe::Sparse s;
  s.kind = recipe::SparseKind::griffin;
  s.keep = {keep};
  s.refresh = {refresh};
  return s;
}
recipe::Sparse cats(double keep, bool weigh = false) {
  recipe::Sparse s;
  s.kind = recipe::SparseKind::cats;
  s.keep = {keep};
  s.weighted = weigh;
  return s;
}
recipe::Sparse magnitude(double keep) {
  recipe::Sparse s;
  s.kind = recipe::SparseKind::magnitude;
  s.keep = {keep};
  return s;
}

/// A target that drafts for itself with some of its channels, and some of its keys too.
struct Sirius {
  std::unique_ptr<decode::Engine> engine;
  kv::Reading drafts;

  explicit Sirius(const recipe::Sparse& sparse, std::vector<recipe::Cache> caches = {{}})
      : drafts{.keys = static_cast<int>(caches.size()) - 1, .channels = 1} {
    engine = make_engine(tiny_model("tiny-2m"), {.caches = std::move(caches), .sparse = {sparse}});
  }
  std::unique_ptr<Rounds> rounds(const TokenTree& tree, RoundOptions options = {}) const {
    if (options.verify == VerifyChoice::automatic) options.verify = VerifyChoice::match;
    return model_rounds(*engine, {*engine, drafts}, tree, std::move(options));
  }
  std::vector<decode::Request> requests(size_t n = 6) const {
    std::vector<decode::Request> all;
    for (size_t i = 0; i < n; ++i) all.push_back(request(engine->tokenizer()->encode(kPrompts[i])));
    return all;
  }
};

}  // namespace

TEST_SUITE("ffn/sparse-drafts") {
  TEST_CASE("f32: any policy and share of channels: by match the text is the target's") {
    for (const recipe::Sparse& sparse :
         {griffin(.3), griffin(.5, .2), cats(.3), cats(.5, true), magnitude(.5), griffin(.01)}) {
      CAPTURE(recipe::yaml_text(sparse.kind));
      const Sirius sirius(sparse);
      const auto requests = sirius.requests();
      const Generated plain = generate(*sirius.engine, requests, rules(48));
      const int pages = sirius.engine->cache().store().free_pages();
      for (const TokenTree& tree : {chain_tree(4), chain_tree(12), tree_of(kBushy)}) {
        CAPTURE(tree.levels());
        const auto rounds = sirius.rounds(tree);
        CHECK(generate(*sirius.engine, requests, rules(48), rounds.get()).ids == plain.ids);
        const std::vector<decode::Request> one = {requests[2]};
        CHECK(generate(*sirius.engine, one, rules(48), rounds.get()).ids[0] == plain.ids[2]);
        CHECK(rounds->stats().accepted > 0);
        CHECK(rounds->stats().accepted < rounds->stats().drafted);
        CHECK(sirius.engine->cache().store().free_pages() == pages);
      }
    }
  }

  TEST_CASE("f32: with all channels every drafted token is the target's") {
    for (const recipe::Sparse& sparse : {griffin(1), cats(1)}) {
      const Sirius sirius(sparse);
      for (const int k : {2, 4, 8, 16}) {
        CAPTURE(k);
        const auto rounds = sirius.rounds(chain_tree(k));
        const auto requests = sirius.requests(3);
        CHECK(generate(*sirius.engine, requests, rules(64), rounds.get()).ids ==
              generate(*sirius.engine, requests, rules(64)).ids);
        CHECK(rounds->stats().tokens_per_round() == k);
        CHECK(rounds->stats().mean_offered() == k);
        CHECK(rounds->stats().mean_rollback() == 0);
      }
    }
  }

  TEST_CASE("f32: of one token a round every token is the whole model's") {
    const Sirius sirius(griffin(.3));
    const auto rounds = sirius.rounds(chain_tree(1));
    CHECK(generate(*sirius.engine, sirius.requests(2), rules(30), rounds.get()).ids ==
          generate(*sirius.engine, sirius.requests(2), rules(30)).ids);
    CHECK(rounds->stats().tokens_per_round() == 1);
  }

  TEST_CASE("f32: at a temperature, too, the text by match is plain sampling's") {
    const Sirius sirius(cats(.5, true));
    const auto rounds = sirius.rounds(chain_tree(6));
    for (const float temperature : {0.6f, 1.0f})
      CHECK(generate(*sirius.engine, sirius.requests(4), rules(48, temperature, 3), rounds.get())
                .ids ==
            generate(*sirius.engine, sirius.requests(4), rules(48, temperature, 3)).ids);
  }

  TEST_CASE("f32: few channels and few keys, one drafter's") {
    const Sirius sirius(griffin(.5), {{}, streaming(2, 12)});
    const auto rounds = sirius.rounds(chain_tree(5));
    CHECK(generate(*sirius.engine, sirius.requests(), rules(60), rounds.get()).ids ==
          generate(*sirius.engine, sirius.requests(), rules(60)).ids);
    CHECK(rounds->stats().accepted > 0);
  }

  TEST_CASE("f32: chains whose length each round chooses") {
    const Sirius sirius(griffin(.5));
    check_chosen_lengths(*sirius.engine, {*sirius.engine, sirius.drafts}, sirius.requests());
  }

  TEST_CASE(
      "f32: with all channels a floor changes no text, and floor_or_argmax takes all tokens") {
    const Sirius sirius(griffin(1));
    const auto requests = sirius.requests(4);
    const Generated plain = generate(*sirius.engine, requests, rules(64));
    for (const int k : {4, 16})
      for (const double floor : {0.1, 0.9}) {
        const auto by_floor = sirius.rounds(
            chain_tree(k), {.verify = VerifyChoice::floor, .floor = {.probability = floor}});
        CHECK(generate(*sirius.engine, requests, rules(64), by_floor.get()).ids == plain.ids);
        CHECK(by_floor->stats().tokens_per_round() <= k);
        const auto or_argmax = sirius.rounds(
            chain_tree(k),
            {.verify = VerifyChoice::floor_or_argmax, .floor = {.probability = floor}});
        CHECK(generate(*sirius.engine, requests, rules(64), or_argmax.get()).ids == plain.ids);
        CHECK(or_argmax->stats().tokens_per_round() == k);
      }
  }

  TEST_CASE("f32: floors above 1 take nothing, floors of 0 all; that is not the sparse text") {
    const Sirius sirius(griffin(.3));
    const auto requests = sirius.requests(4);
    const auto above = sirius.rounds(
        chain_tree(8), {.verify = VerifyChoice::floor, .floor = {.probability = 1.1}});
    CHECK(generate(*sirius.engine, requests, rules(48), above.get()).ids ==
          generate(*sirius.engine, requests, rules(48)).ids);
    CHECK(above->stats().tokens_per_round() == 1);
    const auto at_0 =
        sirius.rounds(chain_tree(8), {.verify = VerifyChoice::floor, .floor = {.probability = 0}});
    const Generated all = generate(*sirius.engine, requests, rules(48), at_0.get());
    CHECK(at_0->stats().tokens_per_round() == 8);
    CHECK(at_0->stats().mean_rollback() == 0);
    decode::EngineSpec spec = engine_spec({.sparse = {griffin(.3)}});
    spec.channels = {1};
    decode::Engine sparse(decode::open_model(tiny_model("tiny-2m").string(), 0), spec);
    CHECK(generate(sparse, requests, rules(48)).ids != all.ids);
  }

  TEST_CASE("f32: keys after each check are those of a fresh prefill") {
    const Sirius sirius(griffin(.05));
    VerifyChoice verify = VerifyChoice::match;
    SUBCASE("by match") {}
    SUBCASE("by a floor") { verify = VerifyChoice::floor_or_argmax; }
    decode::Engine& engine = *sirius.engine;
    const Ids prompt = engine.tokenizer()->encode(kPrompts[1]);
    std::map<int, std::string> seen;  // by committed tokens
    const auto rounds = sirius.rounds(chain_tree(8), {.on_round =
                                                          [&](const RoundEvent&) {
                                                            seen[engine.cache().length(0)] =
                                                                committed_bytes(engine.cache(), 0);
                                                          },
                                                      .verify = verify});
    const Generated g = generate(engine, {request(prompt)}, rules(60), rounds.get());
    CHECK(rounds->stats().accepted < rounds->stats().drafted);
    REQUIRE(seen.size() > 8);
    Ids text = prompt;
    text.insert(text.end(), g.ids[0].begin(), g.ids[0].end());
    for (const auto& [n, bytes] : seen) {
      CAPTURE(n);
      const int slot = engine.cache().create();
      (void)prefill(engine, slot, Ids(text.begin(), text.begin() + n));
      const std::string fresh = committed_bytes(engine.cache(), slot);
      engine.cache().release(slot);
      REQUIRE(fresh.size() == bytes.size());
      const auto* a = reinterpret_cast<const float*>(bytes.data());
      const auto* b = reinterpret_cast<const float*>(fresh.data());
      double worst = 0;
      for (size_t i = 0; i < fresh.size() / sizeof(float); ++i)
        worst = std::max(worst, std::abs(double{a[i]} - b[i]));
      CHECK(worst < 1e-4);
    }
  }

  TEST_CASE("f32: steps of several sequences read the union of their lists, whose share is told") {
    const Sirius sirius(griffin(.3));
    CHECK(sirius.engine->channels()->share_read(1) == doctest::Approx(.3).epsilon(.01));
    const auto rounds = sirius.rounds(chain_tree(4));
    (void)generate(*sirius.engine, sirius.requests(1), rules(20), rounds.get());
    CHECK(sirius.engine->channels()->share_read(1) == doctest::Approx(.3).epsilon(.01));
    (void)generate(*sirius.engine, sirius.requests(4), rules(20), rounds.get());
    const double share = sirius.engine->channels()->share_read(1);
    CHECK(share > .35);
    CHECK(share < .9);
  }

  TEST_CASE("f32: without checks the text is what the sparse model says token by token") {
    decode::EngineSpec spec = engine_spec({.sparse = {griffin(.5)}});
    spec.channels = {1};
    decode::Engine engine(decode::open_model(tiny_model("tiny-2m").string(), 0), spec);
    const Ids prompt = engine.tokenizer()->encode(kPrompts[4]);
    const Generated g = generate(engine, {request(prompt)}, rules(30));
    const int slot = engine.cache().create();
    Ids said = {argmax(prefill(engine, slot, prompt))};
    while (said.size() < g.ids[0].size())
      said.push_back(argmax(extend(engine, slot, std::span(said).last(1))));
    CHECK(g.ids[0] == said);
    const auto dense = make_engine(tiny_model("tiny-2m"));
    CHECK(generate(*dense, {request(prompt)}, rules(30)).ids[0] != said);
  }
}
