#pragma once
#include <cmath>

#include "rounds_testing.h"
#include "speculate/plan/nested_tokens.h"

/// Rounds within rounds of small models, on either device.
namespace tandem::test {

/// A target that reads its text a second way, and a small model that drafts for that.
struct NestedPair {
  std::unique_ptr<decode::Engine> target, draft;

  /// drafts_by  the target's second reading
  /// small      the draft's
  /// model      of the target; empty: target_on(device)
  NestedPair(const recipe::Cache& drafts_by, Device device, const recipe::Cache& small = {},
             const std::string& drafts = "tiny-2m", Setup setup = {},
             const std::string& model = "") {
    setup.device = device;
    setup.caches = {{}, drafts_by};
    target = make_engine(tiny_model(model.empty() ? target_on(device) : model), setup);
    setup.queue = target->queue();
    setup.caches = {small};
    draft = make_engine(tiny_model(drafts), setup);
  }

  std::unique_ptr<speculate::Rounds> rounds(const speculate::TokenTree& tree,
                                            const speculate::NestedShape& shape,
                                            speculate::WithinOptions within = {},
                                            speculate::RoundOptions options = {}) const {
    return speculate::nested_rounds(*target, {*target, {.keys = 1}}, *draft, tree, shape,
                                    std::move(within), std::move(options));
  }
  std::vector<decode::Request> requests() const {
    std::vector<decode::Request> all;
    for (const char* prompt : kPrompts) all.push_back(request(target->tokenizer()->encode(prompt)));
    return all;
  }
};

/// Shapes of rounds within rounds: one, few until there is enough, as many as it takes.
struct NestedCase {
  speculate::TokenTree tree;
  speculate::NestedShape shape;
};
inline std::vector<NestedCase> nested_cases() {
  return {{speculate::chain_tree(2), {.rounds = 1, .enough = 1}},
          {speculate::chain_tree(2), {.rounds = 6, .enough = 6}},
          {speculate::chain_tree(4), {.rounds = 3, .enough = 5}},
          {tree_of({4, 0, 0, 0, 0}), {.rounds = 4, .enough = 8}},
          {tree_of(kBushy), {.rounds = 3, .enough = 30}}};
}

/// Greedy text is the target's own, in batches whose sequences end and join, at a stop or at their
/// length, and alone; nothing stays behind; counts add up.
inline void check_nested_texts(const NestedPair& pair,
                               const speculate::RoundOptions& options = {}) {
  const auto requests = pair.requests();
  const std::vector<decode::Request> one = {requests[2]};
  decode::GenerateSpec to_length = rules(60);
  to_length.max_active = 3;
  const Generated plain = generate(*pair.target, requests, to_length);
  decode::GenerateSpec to_stop = to_length;
  to_stop.stop_ids = {own_token(plain, 1, 20), own_token(plain, 4, 7)};
  const Generated stopped = generate(*pair.target, requests, to_stop);
  const int pages = pair.target->cache().store().free_pages();
  const int draft_pages = pair.draft->cache().store().free_pages();
  for (const NestedCase& c : nested_cases()) {
    CAPTURE(c.tree.size());
    CAPTURE(c.shape.rounds);
    const auto rounds = pair.rounds(c.tree, c.shape, {}, options);
    CHECK(generate(*pair.target, one, to_length, rounds.get()).ids[0] == plain.ids[2]);
    CHECK(generate(*pair.target, requests, to_stop, rounds.get()).ids == stopped.ids);
    const speculate::RoundStats& outer = rounds->stats();
    CHECK(outer.accepted > 0);
    CHECK(outer.emitted == outer.accepted + outer.rounds);
    REQUIRE(rounds->stats_within() != nullptr);
    const speculate::RoundStats& within = *rounds->stats_within();
    // What rounds within emit is what the others draft, but for chains that have no more room.
    CHECK(within.emitted >= outer.drafted);
    CHECK(within.rounds <= outer.rounds * c.shape.rounds);
    CHECK(within.accepted > 0);
    CHECK(outer.refused <= outer.rounds);
    CHECK((outer.refused == 0) == (outer.accepted == outer.drafted));
    CHECK(pair.target->cache().store().free_pages() == pages);
    CHECK(pair.draft->cache().store().free_pages() == draft_pages);
  }
}

/// Readings of all keys and a draft that is the target itself: all that is proposed is accepted, at
/// both levels.
inline void check_nested_own_draft(Device device, int rejected) {
  const NestedPair pair(retrieval(4096, 8), device, {}, target_on(device));
  for (const float temperature : {0.0F, 1.0F}) {
    CAPTURE(temperature);
    const speculate::NestedShape shape{.rounds = 2, .enough = 6};
    const auto rounds = pair.rounds(speculate::chain_tree(4), shape);
    (void)generate(*pair.target, pair.requests(), rules(120, temperature, 3), rounds.get());
    const speculate::RoundStats& within = *rounds->stats_within();
    CHECK(within.accepted >= within.drafted - rejected);
    CHECK(rounds->stats().accepted >= rounds->stats().drafted - rejected);
    CHECK(within.refused <= rejected);
    CHECK(rounds->stats().refused <= rejected);
    CHECK(rounds->stats().drafted >= (rounds->stats().rounds - rejected - 6) * 8);
  }
}

/// Rounds within rounds in which the text itself is looked up.
inline std::unique_ptr<speculate::Rounds> lookups_within(const SelfPair& pair, int length,
                                                         const speculate::NestedShape& shape,
                                                         speculate::RoundOptions options = {}) {
  return speculate::nested_lookup_rounds(*pair.engine, {*pair.engine, {.keys = 1}}, 3, length,
                                         shape, {}, std::move(options));
}

/// Prompts of several lengths, of which the longest repeats itself.
inline std::vector<decode::Request> quoting_requests(const SelfPair& pair) {
  std::vector<decode::Request> all = pair.requests();
  std::string again;
  for (int i = 0; i < 3; ++i)
    for (const char* part : {kPrompts[2], " ", kPrompts[0], ". "}) again += part;
  all[1] = request(pair.engine->tokenizer()->encode(again));
  all.resize(4);
  return all;
}

/// Greedy text is the target's own, in batches whose sequences end and join, and alone; nothing
/// stays behind; counts add up.
inline void check_nested_lookup_texts(const SelfPair& pair,
                                      const speculate::RoundOptions& options = {}) {
  const auto requests = quoting_requests(pair);
  decode::GenerateSpec how = rules(36);
  how.max_active = 3;
  const Generated plain = generate(*pair.engine, requests, how);
  const int pages = pair.engine->cache().store().free_pages();
  struct Case {
    int length;
    speculate::NestedShape shape;
  };
  for (const Case& c : {Case{1, {.rounds = 1, .enough = 1}}, Case{4, {.rounds = 3, .enough = 5}},
                        Case{7, {.rounds = 2, .enough = 12}}}) {
    CAPTURE(c.length);
    CAPTURE(c.shape.rounds);
    const auto rounds = lookups_within(pair, c.length, c.shape, options);
    CHECK(generate(*pair.engine, requests, how, rounds.get()).ids == plain.ids);
    CHECK(generate(*pair.engine, {requests[1]}, how, rounds.get()).ids[0] == plain.ids[1]);
    const speculate::RoundStats &outer = rounds->stats(), &within = *rounds->stats_within();
    CHECK(outer.accepted > 0);
    CHECK(outer.emitted == outer.accepted + outer.rounds);
    CHECK(within.emitted >= outer.drafted);
    CHECK(within.rounds <= outer.rounds * c.shape.rounds);
    // Not every round finds something, and what it finds is not all right.
    CHECK(within.accepted > 0);
    CHECK(within.drafted > within.accepted);
    CHECK(within.drafted < within.rounds * c.length);
    CHECK(pair.engine->cache().store().free_pages() == pages);
  }
}

/// Readings of all keys: what rounds within keep is what the target says, whatever is looked up.
inline void check_nested_lookups_kept(Device device, int rejected) {
  const SelfPair pair(retrieval(4096, 8), device);
  for (const float temperature : {0.0F, 0.8F}) {
    CAPTURE(temperature);
    const auto rounds = lookups_within(pair, 3, {.rounds = 3, .enough = 6});
    (void)generate(*pair.engine, quoting_requests(pair), rules(40, temperature, 3), rounds.get());
    CHECK(rounds->stats().drafted > 2 * rounds->stats().rounds);
    CHECK(rounds->stats().accepted >= rounds->stats().drafted - rejected);
    CHECK(rounds->stats_within()->accepted > 0);
  }
}

/// Tokens a round and a round within are those that the vectors give, for chains of every length.
inline void check_nested_simulation(Device device) {
  const NestedPair pair(retrieval(64, 8), device);
  speculate::AcceptanceVector within, around;
  within.rows = {{0.35, 0.2}};
  around.rows = {{0.9}};
  const speculate::TokenTree tree = tree_of({2, 2, 1, 1, 0, 0, 0});
  const speculate::NestedShape shape{.rounds = 3, .enough = 4};
  const auto rounds =
      pair.rounds(tree, shape, {.simulate = within}, {.on_round = {}, .simulate = around});
  for (int seed = 0; seed < 6; ++seed)
    (void)generate(*pair.target, pair.requests(), rules(100, 0, seed), rounds.get());
  const speculate::RoundStats& inner = *rounds->stats_within();
  const std::vector<speculate::TentativeChain> growth =
      speculate::grow_chains(speculate::round_tokens(tree, within), shape.enough, shape.rounds);
  const std::vector<double> by_length =
      speculate::tokens_by_length(growth.back().longest(), around);
  const speculate::RoundStats& outer = rounds->stats();
  REQUIRE(outer.rounds > 300);
  const double n = static_cast<double>(outer.rounds);
  // A round within adds three tokens at most, a chain has up to six.
  CHECK(std::abs(inner.tokens_per_round() - speculate::expected_tokens(tree, within)) <
        4 * 1.5 / std::sqrt(static_cast<double>(inner.rounds)));
  CHECK(std::abs(static_cast<double>(outer.drafted) / n - speculate::mean(growth.back().tokens)) <
        4 * 1.5 / std::sqrt(n));
  CHECK(std::abs(outer.tokens_per_round() - speculate::nested_tokens(growth.back(), by_length)) <
        4 * 3 / std::sqrt(n));
}

}  // namespace tandem::test
