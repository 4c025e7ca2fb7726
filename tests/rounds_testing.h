#pragma once
#include <doctest/doctest.h>

#include <map>

#include "generate_runs.h"
#include "speculate/draft/drafter.h"
#include "speculate/round/rounds.h"
#include "speculate/tree/token_tree.h"

/// Pairs of small models that speculate, on either device.
namespace tandem::test {

inline const char* const kPrompts[] = {"The keeper of the lighthouse",
                                       "Wind from the north, and",
                                       "On the third day the lamp was lit before the fog came in.",
                                       "Log",
                                       "Once upon a time there was a",
                                       "It is not true that"};

/// Numbers of children, breadth first.
inline speculate::TokenTree tree_of(const std::vector<int>& n_children) {
  return speculate::tree_of_children(n_children, "test");
}
inline const std::vector<int> kBushy = {3, 2, 1, 0, 2, 0, 1, 0, 1, 0, 0};

/// The target of pairs that draft for themselves or in nested rounds. On CPUs it is the small
/// model, which takes a fifth of the time and has one KV head; the model of speculate/oracles has
/// two.
inline std::string target_on(Device device) {
  return device.kind == Device::Kind::cpu ? "tiny-2m" : "tiny-16m";
}

/// Plain text and that of speculation, by the same engines and requests.
struct Pair {
  std::unique_ptr<decode::Engine> target, draft;

  explicit Pair(const std::string& drafts = "tiny-2m", Device device = {}, Setup setup = {}) {
    setup.device = device;
    target = make_engine(tiny_model("tiny-16m"), setup);
    setup.queue = target->queue();
    draft = make_engine(tiny_model(drafts), setup);
  }

  std::vector<decode::Request> requests(size_t n) const {
    std::vector<decode::Request> all;
    for (size_t i = 0; i < n; ++i) all.push_back(request(target->tokenizer()->encode(kPrompts[i])));
    return all;
  }
};

inline decode::GenerateSpec rules(int max_tokens, float temperature = 0, int64_t seed = 0) {
  decode::GenerateSpec spec;
  spec.max_tokens = max_tokens;
  spec.sampler.rule.temperature = temperature;
  spec.sampler.seed = seed;
  return spec;
}

/// A stop for one text only: its first token from place `at` on that no other text has.
inline int32_t own_token(const Generated& g, size_t text, size_t at) {
  for (; at < g.ids[text].size(); ++at) {
    bool is_own = true;
    for (size_t i = 0; i < g.ids.size(); ++i)
      is_own =
          is_own && (i == text || std::ranges::find(g.ids[i], g.ids[text][at]) == g.ids[i].end());
    if (is_own) return g.ids[text][at];
  }
  FAIL("the texts are too similar");
  return -1;
}

/// Greedy text is that of the target alone, for any tree, batches and ends of texts; nothing stays
/// behind.
/// tolerance  of log probabilities, relative
inline void check_greedy_texts(const Pair& pair, double tolerance) {
  const auto requests = pair.requests(6);  // four at a time, the others as room comes
  const Generated plain = generate(*pair.target, requests, rules(40));
  const int pages = pair.target->cache().store().free_pages();
  const int draft_pages = pair.draft->cache().store().free_pages();
  for (const speculate::TokenTree& tree :
       {speculate::chain_tree(1), speculate::chain_tree(2), speculate::chain_tree(5),
        tree_of({4, 0, 0, 0, 0}), tree_of(kBushy)}) {
    CAPTURE(tree.size());
    CAPTURE(tree.levels());
    const auto rounds = speculate::model_rounds(*pair.target, *pair.draft, tree);
    const Generated g = generate(*pair.target, requests, rules(40), rounds.get());
    for (size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      CHECK(g.ids[i] == plain.ids[i]);
      CHECK(g.text[i] == plain.text[i]);
      REQUIRE(g.events[i].size() == plain.events[i].size());
      for (size_t t = 0; t < g.events[i].size(); ++t)
        CHECK(g.events[i][t].logprob ==
              doctest::Approx(plain.events[i][t].logprob).epsilon(tolerance));
    }
    const speculate::RoundStats& s = rounds->stats();
    CHECK(s.drafted == s.rounds * (tree.size() - 1));
    CHECK(s.emitted == s.accepted + s.rounds);
    CHECK(s.refused + s.accepted <= s.drafted);
    if (tree.size() == tree.levels()) CHECK(s.refused == s.cut_short);
    CHECK(s.emitted >= 6 * 39);  // the first comes from the prompt; the last rounds may overshoot
    int64_t sum = 0;
    for (const int64_t n : s.accepted_hist) sum += n;
    CHECK(sum == s.rounds);
    if (tree.size() > 1) CHECK(s.accepted > 0);
    CHECK(s.target_s > 0);
    CHECK(pair.target->cache().store().free_pages() == pages);
    CHECK(pair.draft->cache().store().free_pages() == draft_pages);
  }
}

/// A draft that is the target itself is accepted, at any temperature, but for so many tokens: rows
/// of one forward differ by rounding from rows of another, and R and D part by that much.
inline void check_own_draft(const Pair& pair, int rejected) {
  for (const float temperature : {0.0f, 0.6f, 1.0f}) {
    CAPTURE(temperature);
    const auto rounds =
        speculate::model_rounds(*pair.target, *pair.draft, speculate::chain_tree(4));
    (void)generate(*pair.target, pair.requests(3), rules(32, temperature, 5), rounds.get());
    CHECK(rounds->stats().accepted >= rounds->stats().drafted - rejected);
  }
}

/// Text ends at a stop inside an accepted path as it does without rounds.
/// plain    of these requests, 20 tokens
inline void check_stops(const Pair& pair, speculate::Rounds& rounds,
                        const std::vector<decode::Request>& requests, const Generated& plain) {
  for (const size_t at : {size_t{2}, size_t{9}, size_t{15}}) {
    decode::GenerateSpec spec = rules(20);
    spec.stop_ids = {plain.ids[0][at]};
    const Generated want = generate(*pair.target, requests, spec);
    const Generated got = generate(*pair.target, requests, spec, &rounds);
    CHECK(got.ids == want.ids);
    CHECK(got.finish == want.finish);
  }
}

/// Logits that come in groups of some trees of a batch give the same text, at any temperature.
/// trees    of a group; the batch is of four
inline void check_groups(Device device, int trees) {
  for (const auto& tree : {speculate::chain_tree(5), tree_of(kBushy)}) {
    const Pair whole("tiny-2m", device);
    Setup setup;
    setup.logit_rows = 4 * tree.size();
    Pair parts("tiny-2m", device, setup);
    decode::EngineSpec spec = parts.target->spec();
    spec.max_logit_rows = trees * tree.size();
    parts.target =
        std::make_unique<decode::Engine>(decode::open_model(tiny_model("tiny-16m").string(), 0),
                                         spec, nullptr, parts.draft->queue());
    REQUIRE(parts.target->logit_rows().rows() < 4 * tree.size());
    for (const auto verify : {speculate::VerifyChoice::sequoia, speculate::VerifyChoice::traversal})
      for (const float temperature : {0.0f, 0.8f}) {
        // Greedy texts are the same by each rule.
        if (temperature == 0 && verify == speculate::VerifyChoice::traversal) continue;
        CAPTURE(tree.size());
        CAPTURE(temperature);
        const auto text = [&](const Pair& pair) {
          const auto rounds =
              speculate::model_rounds(*pair.target, *pair.draft, tree, {.verify = verify});
          return generate(*pair.target, pair.requests(6), rules(24, temperature, 3), rounds.get())
              .ids;
        };
        CHECK(text(parts) == text(whole));
      }
  }
}

/// A target that drafts for itself under another policy, or under a window.
struct SelfPair {
  std::unique_ptr<decode::Engine> engine;

  /// model   empty: target_on(device)
  SelfPair(const recipe::Cache& drafts_by, Device device, DType compute = DType::f32,
           const recipe::Cache& reads_by = {}, const std::string& model = "")
      : engine(
            make_engine(tiny_model(model.empty() ? target_on(device) : model),
                        {.compute = compute, .caches = {reads_by, drafts_by}, .device = device})) {}
  SelfPair(int recent, Device device, DType compute = DType::f32, const std::string& model = "")
      : SelfPair(streaming(2, recent), device, compute, {}, model) {}
  std::unique_ptr<speculate::Rounds> rounds(const speculate::TokenTree& tree) const {
    return speculate::model_rounds(*engine, {*engine, {.keys = 1}}, tree);
  }
  std::vector<decode::Request> requests() const {
    std::vector<decode::Request> all;
    for (const char* prompt : kPrompts) all.push_back(request(engine->tokenizer()->encode(prompt)));
    return all;
  }
};

/// A window that holds the whole text proposes what the target says itself.
/// share    of first children that are accepted, at least
/// seeds    texts of each prompt and temperature
inline void check_wide_window(const SelfPair& pair, double share, int seeds) {
  for (const float temperature : {0.0f, 1.0f}) {
    CAPTURE(temperature);
    const auto rounds = pair.rounds(speculate::chain_tree(3));
    for (int seed = 0; seed < seeds; ++seed)
      (void)generate(*pair.engine, pair.requests(), rules(200, temperature, seed), rounds.get());
    const speculate::RoundStats& s = rounds->stats();
    CHECK(s.rounds > 300 * seeds);
    CHECK(static_cast<double>(s.accepted_hist[0]) <= (1 - share) * static_cast<double>(s.rounds));
  }
}

/// Under a narrow window greedy text is that of the target's own reading, for chains and trees, in
/// batches and alone; the cache is as full afterwards as before.
/// misses   whether the window is so narrow that chains and trees propose other tokens too
inline void check_narrow_window(const SelfPair& pair, bool misses = true) {
  const auto requests = pair.requests();
  const std::vector<decode::Request> one = {requests[2]};
  const Generated plain = generate(*pair.engine, requests, rules(60));
  const int pages = pair.engine->cache().store().free_pages();
  for (const speculate::TokenTree& tree :
       {speculate::chain_tree(1), speculate::chain_tree(2), speculate::chain_tree(6),
        tree_of({4, 0, 0, 0, 0}), tree_of(kBushy)}) {
    CAPTURE(tree.size());
    CAPTURE(tree.levels());
    const auto rounds = pair.rounds(tree);
    CHECK(generate(*pair.engine, requests, rules(60), rounds.get()).ids == plain.ids);
    CHECK(generate(*pair.engine, one, rules(60), rounds.get()).ids[0] == plain.ids[2]);
    CHECK((rounds->stats().accepted > 0) == (tree.size() > 1));
    if (misses && tree.size() > 1) CHECK(rounds->stats().accepted < rounds->stats().drafted);
    CHECK(pair.engine->cache().store().free_pages() == pages);
  }
}

/// Chains whose length each round chooses: a short batch, one whose sequences end one by one, one
/// that joins late. Greedy text is the target's.
inline void check_chosen_lengths(decode::Engine& target, speculate::Reader draft,
                                 const std::vector<decode::Request>& requests) {
  const int pages = target.cache().store().free_pages();
  const auto rounds = speculate::chain_rounds(target, draft, 6);
  for (const size_t n : {size_t{1}, requests.size()}) {
    CAPTURE(n);
    const std::vector<decode::Request> some(requests.begin(),
                                            requests.begin() + static_cast<long>(n));
    decode::GenerateSpec how = rules(90);
    how.max_active = 2;
    const Generated plain = generate(target, some, how);
    CHECK(generate(target, some, how, rounds.get()).ids == plain.ids);
  }
  // Plain steps to begin with, then longer chains than one of a token.
  const speculate::RoundStats& s = rounds->stats();
  CHECK(s.drafted > 2 * 4);
  CHECK(s.drafted < 6 * s.rounds);
  CHECK(target.cache().store().free_pages() == pages);
}

/// Proposes the token that followed a token last time.
class TableDrafter final : public speculate::Drafter {
 public:
  explicit TableDrafter(int length) : chain_(speculate::chain_tree(length + 1)) {}

  bool draws_children() const override { return false; }
  std::string name() const override { return "table"; }
  const speculate::TokenTree& largest() const override { return chain_; }
  void read(std::span<const decode::DrawSeq> seqs) override {
    for (const decode::DrawSeq& s : seqs) learn(s.tokens);
  }
  void prepare(speculate::Round& round) override {
    for (size_t b = 0; b < round.seqs().size(); ++b) {
      learn(round.seqs()[b].tokens.last(std::min<size_t>(round.seqs()[b].tokens.size(), 16)));
      const std::span<int32_t> tokens = round.host_tokens(b);
      size_t n = 1;
      for (; n < tokens.size() && next_.contains(tokens[n - 1]); ++n)
        tokens[n] = next_.at(tokens[n - 1]);
      round.shorten(b, static_cast<int>(n));
    }
  }

 private:
  void learn(std::span<const int32_t> tokens) {
    for (size_t i = 1; i < tokens.size(); ++i) next_[tokens[i - 1]] = tokens[i];
  }
  speculate::TokenTree chain_;
  std::map<int32_t, int32_t> next_;
};

/// By match any text is the one of plain sampling, token by token.
inline void check_matched_texts(const Pair& pair, speculate::Rounds& rounds) {
  for (const float temperature : {0.0f, 0.7f}) {
    CAPTURE(temperature);
    const auto how = rules(60, temperature, 9);
    CHECK(generate(*pair.target, pair.requests(4), how, &rounds).ids ==
          generate(*pair.target, pair.requests(4), how).ids);
  }
  CHECK(rounds.stats().accepted > 0);
}

/// A drafter from outside the library.
inline void check_table_drafter(const Pair& pair) {
  const auto rounds = speculate::drafted_rounds(*pair.target, std::make_unique<TableDrafter>(4));
  check_matched_texts(pair, *rounds);
  CHECK(rounds->stats().drafted < 4 * rounds->stats().rounds);
}

inline speculate::RoundStats check_look_up(const Pair& pair) {
  const auto rounds = speculate::lookup_rounds(*pair.target, 3, 6);
  check_matched_texts(pair, *rounds);
  return rounds->stats();
}

/// True if no sequence has a page in any layer.
inline bool all_free(const kv::Cache& cache) {
  for (int layer = 0; layer < cache.geometry().n_layers; ++layer)
    if (cache.whole_store(layer).free_pages() != cache.whole_store(layer).spec().n_pages)
      return false;
  return true;
}

/// Checks that rounds of two chains and a tree write n tokens of plain decoding's text and leave no
/// page in use: by a draft model, and by the target under its policy 1.
inline void check_rounds(decode::Engine& target, decode::Engine& draft, int n) {
  std::vector<decode::Request> requests;
  for (const int length : {3, 70, 150}) requests.push_back(request(random_ids(target, length, 9)));
  const Generated plain = generate(target, requests, rules(n));
  for (const speculate::TokenTree& tree :
       {speculate::chain_tree(2), speculate::chain_tree(5), tree_of({2, 1, 1, 0, 1, 0})})
    for (const bool itself : {false, true}) {
      CAPTURE(tree.size());
      CAPTURE(itself);
      const auto rounds = itself ? speculate::model_rounds(target, {target, {.keys = 1}}, tree)
                                 : speculate::model_rounds(target, draft, tree);
      CHECK(generate(target, requests, rules(n), rounds.get()).ids == plain.ids);
      CHECK(rounds->stats().accepted > 0);
      CHECK(all_free(target.cache()));
      CHECK(all_free(draft.cache()));
    }
}

}  // namespace tandem::test
