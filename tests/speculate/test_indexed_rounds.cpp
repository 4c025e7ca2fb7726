// Rounds over a target whose policy indexes keys, wherever these lie: the text of plain decoding,
// past the tokens that move into an index, for rows read there what they read one by one.
#include "kv/policies/token_index.h"
#include "rounds_testing.h"

using namespace tandem;
using namespace tandem::test;
using recipe::Cache;
using recipe::CacheKind;
using recipe::CachePlace;
using speculate::RoundOptions;
using speculate::Rounds;

namespace {

constexpr int kSinks = 4, kRecent = 16, kRoll = kv::TokenIndex::kRoll;

struct Kind {
  std::string name;
  Cache cache;
};

Cache cache_of(CacheKind kind) {
  Cache c;
  c.kind = kind;
  c.sinks = {kSinks};
  c.recent = {kRecent};
  c.dense_layers = {1};
  c.lsh = {.bits = 6, .tables = 40};
  c.quest.ratio = {0.1};
  c.snapkv = {.budget = {128}, .window = 32, .refresh = {25}};
  c.retrieval.budget = {128};
  c.retrieval.rebuild = {.tokens = 50};
  return c;
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const CacheKind kind : {CacheKind::lsh, CacheKind::hybrid, CacheKind::quest,
                               CacheKind::snapkv, CacheKind::retrieval})
    all.push_back({recipe::yaml_text(kind), cache_of(kind)});
  for (const auto tail : {recipe::HybridTail::sampled, recipe::HybridTail::clusters}) {
    all.push_back({"hybrid " + recipe::yaml_text(tail), cache_of(CacheKind::hybrid)});
    all.back().cache.hybrid.tail = tail;
  }
  return all;
}

std::unique_ptr<decode::Engine> engine_of(const Cache& cache) {
  return make_engine(small_model("llama-3.1"),
                     {.max_seqs = 3, .max_tokens = 1600, .caches = {cache}});
}

/// Texts that go on from one document, whose index they share: what they add is read exactly until
/// it moves into an index, some tokens after the prompts.
class Texts {
 public:
  explicit Texts(decode::Engine& engine) : engine_(engine), document_(random_ids(engine, 300, 1)) {
    slot_ = engine.cache().create();
    (void)prefill(engine, slot_, document_);
    for (const int before : {20, 45}) {
      const int length = static_cast<int>(document_.size()) + kRoll - before;
      requests_.push_back(
          {.prefix_slot = slot_,
           .prefix = document_,
           .tokens = random_ids(engine, length - 300, static_cast<uint64_t>(before))});
    }
  }
  ~Texts() { engine_.cache().release(slot_); }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  /// Tokens of both, and log probabilities.
  std::vector<std::pair<Ids, Row>> write(decode::Decoder* decoder = nullptr) const {
    std::vector<std::pair<Ids, Row>> texts;
    const Generated g = generate(engine_, requests_, rules(60), decoder);
    for (size_t i = 0; i < requests_.size(); ++i) {
      texts.emplace_back(g.ids[i], Row{});
      for (const decode::TokenEvent& e : g.events[i]) texts.back().second.push_back(e.logprob);
    }
    return texts;
  }

 private:
  decode::Engine& engine_;
  Ids document_;
  int slot_;
  std::vector<decode::Request> requests_;
};

/// Log probabilities come about in other ways in rounds, but from the same logits.
void check_equal(const std::vector<std::pair<Ids, Row>>& got,
                 const std::vector<std::pair<Ids, Row>>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(got[i].first == want[i].first);
    CHECK(max_difference(got[i].second, want[i].second) < 1e-5);
  }
}

}  // namespace

TEST_SUITE("speculate/indexed-rounds") {
  TEST_CASE(
      "f32: chains, trees, beams, prompt lookup, rounds ahead: tokens move in as in plain "
      "decoding") {
    const auto draft = engine_of({});
    for (const Kind& kind : kinds()) {
      CAPTURE(kind.name);
      const auto whole = engine_of(kind.cache);
      const std::vector<std::pair<Ids, Row>> want = Texts(*whole).write();
      for (const CachePlace place : {CachePlace::device, CachePlace::host}) {
        Cache cache = kind.cache;
        cache.place = place;
        if (place == CachePlace::host && kind.name != "lsh" && !kind.name.starts_with("hybrid"))
          continue;
        CAPTURE(recipe::yaml_text(place));
        const auto target = engine_of(cache);
        const Texts texts(*target);
        check_equal(texts.write(), want);
        for (const bool ahead : {false, true}) {
          CAPTURE(ahead);
          const RoundOptions options{.ahead = ahead};
          for (const speculate::TokenTree& tree : {speculate::chain_tree(6), tree_of(kBushy)}) {
            CAPTURE(tree.size());
            const auto rounds = speculate::model_rounds(*target, *draft, tree, options);
            check_equal(texts.write(rounds.get()), want);
            // A draft that reads all keys agrees less with policies that read few of them.
            CHECK(rounds->stats().accepted > 0);
          }
          const auto beams =
              speculate::beam_rounds(*target, *draft, {.width = 3, .gamma = 5}, options);
          check_equal(texts.write(beams.get()), want);
          CHECK(beams->stats().accepted > 0);
        }
        const auto lookup = speculate::lookup_rounds(*target, 2, 6);
        check_equal(texts.write(lookup.get()), want);
      }
    }
  }

  TEST_CASE("f32: an index that begins in the midst of a text has one frame and one center") {
    const auto draft = engine_of({});
    for (const Kind& kind : kinds()) {
      if (kind.cache.kind == CacheKind::snapkv) continue;
      CAPTURE(kind.name);
      const auto target = engine_of(kind.cache);
      const std::vector<decode::Request> one = {
          request(random_ids(*target, kSinks + kRecent - 3, 5))};
      const Generated plain = generate(*target, one, rules(kRoll + 60));
      const auto rounds =
          speculate::model_rounds(*target, *draft, speculate::chain_tree(6), {.ahead = true});
      CHECK(generate(*target, one, rules(kRoll + 60), rounds.get()).ids == plain.ids);
      // A draft that reads all keys agrees less with one that reads 128 tokens.
      const int64_t least = kind.cache.kind == CacheKind::retrieval ? 0 : rounds->stats().rounds;
      CHECK(rounds->stats().accepted > least);
    }
  }

  TEST_CASE("one round is under way where the next may begin under another rule") {
    const auto draft = engine_of({}), target = engine_of(cache_of(CacheKind::lsh));
    const auto rounds =
        speculate::model_rounds(*target, *draft, speculate::chain_tree(4), {.ahead = true});
    rounds->start({});
    const int slot = target->cache().create(rounds->readers());
    Ids text = random_ids(*target, 60, 3);
    const auto seqs = [&] {
      return std::vector<decode::DrawSeq>{{0, slot, static_cast<int>(text.size()), text}};
    };
    const decode::SeqTokens prompt[] = {{slot, text, true}};
    target->prefill(prompt, [&](std::span<const size_t>, const Tensor& logits) {
      rounds->draw(seqs(), logits);
    });
    const auto collect = [&] {
      const auto drawn = rounds->collect();
      for (const decode::Drawn& d : drawn[0]) text.push_back(d.id);
    };
    collect();
    const int change = target->cache().next_change(slot, {});
    CHECK(change == 60 + kRoll);
    bool waited = false;
    while (target->cache().length(slot) < change) {
      rounds->step(seqs());
      const bool may_reach = target->cache().length(slot) + 4 >= change;
      CHECK(rounds->depth() == (may_reach ? 1 : 2));
      waited = waited || may_reach;
      collect();
      REQUIRE(target->cache().length(slot) <= change);
    }
    CHECK(waited);
    CHECK(target->cache().next_change(slot, {}) == change + kRoll);
    rounds->forget(slot);
    target->cache().release(slot);
  }
}
