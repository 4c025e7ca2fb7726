#pragma once
#include <doctest/doctest.h>

#include "generate_runs.h"
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

/// Look-up: any text is the one of plain sampling, token by token.
inline speculate::RoundStats check_look_up(const Pair& pair) {
  const auto rounds = speculate::lookup_rounds(*pair.target, 3, 6);
  for (const float temperature : {0.0f, 0.7f}) {
    CAPTURE(temperature);
    const auto how = rules(60, temperature, 9);
    CHECK(generate(*pair.target, pair.requests(4), how, rounds.get()).ids ==
          generate(*pair.target, pair.requests(4), how).ids);
  }
  CHECK(rounds->stats().accepted > 0);
  return rounds->stats();
}

}  // namespace tandem::test
