#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using speculate::RoundOptions;
using speculate::Rounds;

namespace {

struct Maker {
  std::string name;
  std::function<std::unique_ptr<Rounds>(RoundOptions)> make;
};

/// Rounds that may be laid out ahead of the one before them: under a narrow reading of the same
/// cache, and by a small model; chains, a tree, chains of chosen lengths.
std::vector<Maker> makers(const Pair& pair, const SelfPair& self) {
  static const auto narrow =
      make_engine(tiny_model("tiny-2m"), {.caches = {streaming(1, 20)}});  // evicts
  std::vector<Maker> all;
  const auto add = [&](const std::string& name, decode::Engine& target, speculate::Reader draft) {
    for (const auto& [shape, tree] :
         {std::pair{" chain", speculate::chain_tree(4)}, std::pair{" tree", tree_of(kBushy)}})
      all.push_back({name + shape, [&target, draft, t = tree](RoundOptions options) {
                       return speculate::model_rounds(target, draft, t, std::move(options));
                     }});
    all.push_back({name + " chosen", [&target, draft](RoundOptions options) {
                     return speculate::chain_rounds(target, draft, 4, std::move(options));
                   }});
  };
  add("self", *self.engine, {*self.engine, {.keys = 1}});
  add("model", *pair.target, *pair.draft);
  add("model under a window", *pair.target, *narrow);
  return all;
}

}  // namespace

// As on a GPU, but every round is over when it has been put in flight: what the host may not know
// it is not told.
TEST_SUITE("speculate/ahead") {
  const RoundOptions kAhead{.ahead = true};

  TEST_CASE("greedy text is that of the target, with sequences that end and join") {
    const Pair pair;
    const SelfPair self(24, {});
    const auto requests = pair.requests(6);
    for (decode::Engine* engine : {self.engine.get(), pair.target.get()}) {
      decode::GenerateSpec how = rules(60);
      how.max_active = 3;
      const Generated plain = generate(*engine, requests, how);
      how.stop_ids = {own_token(plain, 1, 20), own_token(plain, 4, 7)};
      const Generated stopped = generate(*engine, requests, how);
      for (const Maker& maker : makers(pair, self)) {
        if (maker.name.starts_with("self") != (engine == self.engine.get())) continue;
        CAPTURE(maker.name);
        const int pages = engine->cache().store().free_pages();
        const auto rounds = maker.make(kAhead);
        const Generated got = generate(*engine, requests, how, rounds.get());
        CHECK(got.ids == stopped.ids);
        CHECK(got.finish == stopped.finish);
        CHECK(rounds->stats().accepted > 0);
        CHECK(engine->cache().store().free_pages() == pages);
      }
    }
  }

  TEST_CASE("sampled text is that of rounds one after the other") {
    const Pair pair;
    const SelfPair self(24, {});
    for (const Maker& maker : makers(pair, self)) {
      if (maker.name.ends_with("chosen")) continue;  // by times
      CAPTURE(maker.name);
      decode::Engine& engine = maker.name.starts_with("self") ? *self.engine : *pair.target;
      const auto how = rules(60, 0.8F, 11);
      const auto one = maker.make({.ahead = false}), two = maker.make(kAhead);
      CHECK(generate(engine, pair.requests(3), how, two.get()).ids ==
            generate(engine, pair.requests(3), how, one.get()).ids);
    }
  }

  TEST_CASE("two rounds are under way, but where a rule or a draft asks for the tokens") {
    const Pair pair;
    const SelfPair self(24, {});
    const auto depth_of = [](Rounds& rounds, decode::SamplerSpec how) {
      rounds.start(how);
      return rounds.depth();
    };
    const auto rounds = makers(pair, self)[0].make(kAhead);
    CHECK(depth_of(*rounds, {}) == 2);
    decode::SamplerSpec penalty;
    penalty.rule.repetition_penalty = 1.2F;
    CHECK(depth_of(*rounds, penalty) == 1);
    CHECK(depth_of(*makers(pair, self)[0].make({}), {}) == 1);  // on a CPU there is nothing to win
    CHECK(depth_of(*speculate::lookup_rounds(*pair.target, 3, 4, kAhead), {}) == 1);
    auto how = rules(30, 0.7F, 3);
    how.sampler.rule.repetition_penalty = 1.2F;
    const auto one = makers(pair, self)[0].make({.ahead = false});
    CHECK(generate(*self.engine, pair.requests(2), how, rounds.get()).ids ==
          generate(*self.engine, pair.requests(2), how, one.get()).ids);
  }

  TEST_CASE("a round leaves a sequence out: its draft has read what it should") {
    const Pair pair;
    const auto rounds =
        speculate::model_rounds(*pair.target, *pair.draft, speculate::chain_tree(4), kAhead);
    rounds->start(rules(1, 1.0F, 5).sampler);
    std::vector<Ids> texts;
    std::vector<int> slots;
    std::vector<decode::SeqTokens> prompts;
    for (size_t i = 0; i < 2; ++i) texts.push_back(pair.target->tokenizer()->encode(kPrompts[i]));
    for (const Ids& text : texts) {
      slots.push_back(pair.target->cache().create(rounds->readers()));
      prompts.push_back({slots.back(), text, true});
    }
    const auto seqs = [&](const std::vector<int>& which) {
      std::vector<decode::DrawSeq> all;
      for (const int i : which) {
        const Ids& text = texts[static_cast<size_t>(i)];
        all.push_back({i, slots[static_cast<size_t>(i)], static_cast<int>(text.size()), text});
      }
      return all;
    };
    const auto collect = [&](const std::vector<int>& which) {
      const auto drawn = rounds->collect();
      for (size_t b = 0; b < which.size(); ++b)
        for (const decode::Drawn& d : drawn[b])
          texts[static_cast<size_t>(which[b])].push_back(d.id);
    };
    const std::vector<int> both = {0, 1}, second = {1};
    pair.target->prefill(prompts, [&](std::span<const size_t>, const Tensor& logits) {
      rounds->draw(seqs(both), logits);
    });
    collect(both);
    for (int i = 0; i < 12; ++i) {
      CAPTURE(i);
      rounds->step(seqs(both));
      rounds->step(seqs(both));  // ahead of the end of the first
      collect(both);
      rounds->step(seqs(second));
      collect(both);
      collect(second);
      for (const int b : both) {  // all but the last token, and an accepted leaf
        const int lacking =
            static_cast<int>(texts[static_cast<size_t>(b)].size()) - pair.draft->cache().length(b);
        CHECK(lacking >= 1);
        CHECK(lacking <= 2);
      }
    }
    CHECK(rounds->stats().accepted > 0);
    CHECK(rounds->stats().accepted < rounds->stats().drafted);
    for (const int slot : slots) {
      rounds->forget(slot);
      pair.target->cache().release(slot);
    }
  }

  TEST_CASE("a run that was broken off leaves the next one nothing") {
    const Pair pair;
    const SelfPair self(24, {});
    for (const Maker& maker : makers(pair, self)) {
      CAPTURE(maker.name);
      decode::Engine& engine = maker.name.starts_with("self") ? *self.engine : *pair.target;
      const auto how = rules(40);
      const Generated plain = generate(engine, pair.requests(2), how);
      const auto rounds = maker.make(kAhead);
      int told = 0;
      decode::GenerateEvents events;
      events.interrupted = [&] { return ++told > 6; };
      CHECK_THROWS(decode::generate(engine, *rounds, pair.requests(2), how, events));
      CHECK(generate(engine, pair.requests(2), how, rounds.get()).ids == plain.ids);
    }
  }
}
