// What must hold of every draft (MagicDec's specification, section 11), draft by draft.
#include <doctest/doctest.h>

#include "recipe/scalar.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;
using recipe::Cache;
using recipe::CacheKind;

namespace {

Cache verified(int budget) {
  Cache c;
  c.kind = CacheKind::verified;
  c.verified = {.budget = {budget}, .window = 8};
  return c;
}
Cache quest(double ratio) {
  Cache c;
  c.kind = CacheKind::quest;
  c.dense_layers = {};
  c.recent = {16};
  c.quest = {.page = 16, .ratio = {ratio}};
  return c;
}
Cache lsh() {
  Cache c;
  c.kind = CacheKind::lsh;
  c.dense_layers = {};
  c.recent = {16};
  c.lsh = {.bits = 5, .tables = 24};
  return c;
}
Cache hybrid() {
  Cache c;
  c.kind = CacheKind::hybrid;
  c.dense_layers = {};
  c.recent = {16};
  c.hybrid = {.bits = 64, .exact = {0.05}, .sample = {0.05}};
  return c;
}
Cache with(Cache c, int refresh, recipe::SnapScale scale) {
  c.snapkv.refresh = {refresh};
  c.snapkv.scale = scale;
  return c;
}

struct Named {
  std::string name;
  Cache cache;
};
/// Keys of drafts that leave most of the text out.
std::vector<Named> narrow() {
  return {{"streaming", streaming(2, 12)},
          {"streaming repositioned", streaming(2, 12, true)},
          {"snapkv", snapkv(40, 8)},
          {"snapkv refreshed, not scaled", with(snapkv(40, 8), 5, recipe::SnapScale::off)},
          {"retrieval", retrieval(40, 4)},
          {"verified", verified(256)},
          {"quest", quest(0.1)},
          {"lsh", lsh()},
          {"hybrid", hybrid()}};
}
/// The same with a budget beyond every text.
std::vector<Named> saturated() {
  return {{"full", {}},
          {"streaming", streaming(2, 4096)},
          {"snapkv", snapkv(4096, 8)},
          {"retrieval", retrieval(4096, 8)},
          {"verified", verified(4096)},
          {"quest", quest(1)}};
}

constexpr const char* kModel = "llama-3.1";
Setup setup_of(std::vector<Cache> caches) {
  return {.max_tokens = 512, .caches = std::move(caches)};
}
/// Prompts of all lengths together: shorter than windows, longer than budgets.
std::vector<decode::Request> ragged(const decode::Engine& engine) {
  std::vector<decode::Request> all;
  for (const int n : {3, 400, 60, 290, 1})
    all.push_back(request(random_ids(engine, n, static_cast<uint64_t>(n))));
  return all;
}

/// Proposes what it is told to, as if it knew the text.
class Scripted final : public Drafter {
 public:
  using Propose = std::function<int32_t(std::span<const int32_t> tokens, int ahead)>;
  Scripted(int length, Propose propose)
      : chain_(chain_tree(length + 1)), propose_(std::move(propose)) {}
  bool draws_children() const override { return false; }
  std::string name() const override { return "scripted"; }
  const TokenTree& largest() const override { return chain_; }
  void prepare(Round& round) override {
    for (size_t b = 0; b < round.seqs().size(); ++b)
      for (int i = 1; i < chain_.size(); ++i)
        round.host_tokens(b)[static_cast<size_t>(i)] = propose_(round.seqs()[b].tokens, i - 1);
  }

 private:
  TokenTree chain_;
  Propose propose_;
};

}  // namespace

TEST_SUITE("speculate/oracles") {
  TEST_CASE("f32: with room for the whole text every drafted token is accepted") {
    for (const Named& draft : saturated()) {
      CAPTURE(draft.name);
      const auto engine = make_engine(small_model(kModel), setup_of({{}, draft.cache}));
      for (const float temperature : {0.0f, 1.0f}) {
        CAPTURE(temperature);
        const auto rounds = model_rounds(*engine, {*engine, {.keys = 1}}, chain_tree(5));
        (void)test::generate(*engine, ragged(*engine), rules(41, temperature, 3), rounds.get());
        const RoundStats& s = rounds->stats();
        CHECK(s.rounds >= 5 * 8);
        // Rows of one forward differ from those of another by rounding: one in thousands of
        // draws.
        CHECK(s.accepted >= s.drafted - (temperature > 0 ? 1 : 0));
        CHECK(s.emitted == s.accepted + s.rounds);
      }
    }
  }

  TEST_CASE("bf16: nearly every one, of a trained model") {
    for (const Named& draft : saturated()) {
      CAPTURE(draft.name);
      const auto engine =
          make_engine(tiny_model("tiny-2m"), {.compute = DType::bf16, .caches = {{}, draft.cache}});
      std::vector<decode::Request> requests;
      for (const char* prompt : kPrompts)
        requests.push_back(request(engine->tokenizer()->encode(prompt)));
      for (const float temperature : {0.0f, 1.0f}) {
        CAPTURE(temperature);
        const auto rounds = model_rounds(*engine, {*engine, {.keys = 1}}, chain_tree(5));
        (void)test::generate(*engine, requests, rules(80, temperature, 3), rounds.get());
        const RoundStats& s = rounds->stats();
        // Accepted over tested: a round tests no token after one that it refuses.
        const auto refused = static_cast<double>(s.rounds - s.accepted_hist.back());
        const auto accepted = static_cast<double>(s.accepted);
        CAPTURE(accepted);
        CAPTURE(refused);
        CHECK(accepted / (accepted + refused) >= 0.995);
      }
    }
  }

  TEST_CASE("f32: greedy texts of ragged batches are the target's, whichever keys a draft reads") {
    std::string model = kModel;
    SUBCASE("Llama") {}
    SUBCASE("Granite") { model = "granite"; }
    SUBCASE("OLMo 2") { model = "olmo2"; }
    SUBCASE("SmolLM3") { model = "smollm3"; }
    const auto alone = make_engine(small_model(model), setup_of({{}}));
    const auto requests = ragged(*alone);
    const Generated plain = test::generate(*alone, requests, rules(30));
    const auto check = [&](decode::Engine& target, Reader draft) {
      for (const TokenTree& tree : {chain_tree(4), tree_of(kBushy)}) {
        CAPTURE(tree.size());
        const auto rounds = model_rounds(target, draft, tree);
        const Generated g = test::generate(target, requests, rules(30), rounds.get());
        CHECK(g.ids == plain.ids);
        CHECK(g.finish == plain.finish);
        int64_t sum = 0;
        for (const int64_t n : rounds->stats().accepted_hist) sum += n;
        CHECK(sum == rounds->stats().rounds);
      }
    };
    for (const Named& draft : narrow()) {
      CAPTURE(draft.name);
      const auto engine = make_engine(small_model(model), setup_of({{}, draft.cache}));
      check(*engine, {*engine, {.keys = 1}});
      if (draft.cache.kind == CacheKind::verified) continue;  // is the target's own
      const auto other = make_engine(small_model(model), setup_of({draft.cache}));
      check(*alone, *other);
    }
  }

  TEST_CASE(
      "drafts that are always wrong, random or right change how many rounds there are alone") {
    const auto engine = make_engine(small_model(kModel), setup_of({{}}));
    const auto requests = ragged(*engine);
    const int vocab = engine->config().vocab_size;
    for (const float temperature : {0.0f, 0.8f}) {
      CAPTURE(temperature);
      const auto how = rules(25, temperature, 4);
      const Generated plain = test::generate(*engine, requests, how);
      // The token that plain generation has at that place; 0 beyond its end.
      const auto next = [&](std::span<const int32_t> tokens, int ahead) -> int32_t {
        for (size_t i = 0; i < requests.size(); ++i) {
          const Ids& prompt = requests[i].tokens;
          if (tokens.size() < prompt.size() ||
              !std::equal(prompt.begin(), prompt.end(), tokens.begin()))
            continue;
          const size_t at = tokens.size() - prompt.size() + static_cast<size_t>(ahead);
          return at < plain.ids[i].size() ? plain.ids[i][at] : 0;
        }
        return 0;
      };
      const auto run = [&](const Scripted::Propose& propose) {
        const auto rounds = drafted_rounds(*engine, std::make_unique<Scripted>(4, propose));
        CHECK(test::generate(*engine, requests, how, rounds.get()).ids == plain.ids);
        return rounds->stats();
      };
      const RoundStats wrong =
          run([&](auto tokens, int ahead) { return (next(tokens, ahead) + 1) % vocab; });
      CHECK(wrong.accepted == 0);
      CHECK(wrong.emitted == wrong.rounds);
      const RoundStats right = run(next);
      CHECK(right.rounds < wrong.rounds / 3);
      PhiloxStream draw(8);
      const RoundStats random = run([&](auto, int) {
        return static_cast<int32_t>(draw.below(static_cast<uint32_t>(vocab)));
      });
      CHECK(random.rounds > right.rounds);
    }
  }
}
