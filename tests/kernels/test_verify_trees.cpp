#include "kernels/tree_case.h"

using namespace tandem;
using namespace tandem::test;

namespace {

constexpr AcceptBy kRules[] = {AcceptBy::match, AcceptBy::sequoia, AcceptBy::traversal};

/// shape    of all trees; empty: random ones
TreeCase random_trees(Nature nature, int vocab, int n_seqs, const Settings& draft, uint32_t seed,
                      const std::vector<int32_t>& shape = {}) {
  PhiloxStream stream(seed);
  TreeCase c{.vocab = vocab};
  for (int b = 0; b < n_seqs; ++b) add_tree(c, stream, nature, keep_rule(draft), shape);
  return c;
}

const std::vector<int32_t> kChain = {1, 1, 1, 1, 1, 1, 1, 1, 0}, kStar = {4, 0, 0, 0, 0};

/// The token that `sample` draws from a row.
int sample_row(const TreeCase& c, size_t node, const KeepRule& rule,
               const std::vector<int32_t>& seen, double uniform) {
  const auto workspace = aligned_bytes(sample_workspace_bytes(c.vocab));
  const int32_t seen_begin[2] = {0, static_cast<int32_t>(seen.size())};
  int32_t token = -2;
  cpu_table().sample({.tokens = &token,
                      .logits = c.target.data() + static_cast<size_t>(c.target_row[node]) *
                                                      static_cast<size_t>(c.vocab),
                      .uniform = &uniform,
                      .seen = seen.data(),
                      .seen_begin = seen_begin,
                      .n_rows = 1,
                      .vocab = c.vocab,
                      .rule = rule,
                      .workspace = workspace.get()},
                     {0, 1});
  return token;
}

}  // namespace

TEST_SUITE("kernels/verify_trees") {
  TEST_CASE("equal to the reference, and on every ISA bit for bit") {
    int n_accepted = 0, n_trees = 0;
    for (const Nature nature : kNatures)
      for (const int vocab : {2, 7, 65, 1009})
        for (const Settings& s : kSettings)
          for (const AcceptBy by : kRules)
            for (const Settings& draft : {Settings{.temperature = 0.8f}, s}) {
              const TreeCase c = random_trees(nature, vocab, 3, draft, 21);
              const TreeResult want =
                  verify(verify_trees_ref, c, keep_rule(s), keep_rule(draft), by);
              const TreeResult scalar = verify(cpu_table(Isa::scalar).verify_trees, c, keep_rule(s),
                                               keep_rule(draft), by);
              CAPTURE(static_cast<int>(nature));
              CAPTURE(vocab);
              CAPTURE(&s - kSettings);
              CAPTURE(static_cast<int>(by));
              CAPTURE(draft.penalty);
              REQUIRE(scalar.path == want.path);
              REQUIRE(scalar.bonus == want.bonus);
              require_close_logprobs(scalar, want);
              for (const Isa isa : usable_isas()) {
                CAPTURE(isa_name(isa));
                REQUIRE(verify(cpu_table(isa).verify_trees, c, keep_rule(s), keep_rule(draft),
                               by) == scalar);
              }
              n_trees += c.n_seqs();
              for (const auto& path : want.path) n_accepted += static_cast<int>(path.size());
            }
    CHECK(n_accepted > n_trees / 2);  // the walks went somewhere
  }

  TEST_CASE("equal to the reference where a rule cuts the draft, and where children are fixed") {
    for (const Nature nature : {Nature::normal, Nature::flat, Nature::masked})
      for (const Settings& draft : kSettings)
        for (const int n_drawn : {0, 1, 2, kAllDrawn})
          for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::traversal}) {
            if (draft.temperature == 0) continue;  // such children are not drawn
            const KeepRule target = keep_rule({.temperature = 0.9f, .top_p = 0.9});
            const TreeCase c = random_trees(nature, 65, 4, draft, 77);
            CAPTURE(static_cast<int>(nature));
            CAPTURE(&draft - kSettings);
            CAPTURE(n_drawn);
            CAPTURE(static_cast<int>(by));
            const TreeResult want =
                verify(verify_trees_ref, c, target, keep_rule(draft), by, n_drawn);
            const TreeResult scalar = verify(cpu_table(Isa::scalar).verify_trees, c, target,
                                             keep_rule(draft), by, n_drawn);
            REQUIRE(scalar.path == want.path);
            REQUIRE(scalar.bonus == want.bonus);
            for (const Isa isa : usable_isas())
              REQUIRE(verify(cpu_table(isa).verify_trees, c, target, keep_rule(draft), by,
                             n_drawn) == scalar);
          }
  }

  TEST_CASE(
      "chains equal to the reference, equal distributions too; sums made ahead change nothing") {
    for (const Nature nature : kNatures)
      for (const float temperature : {0.6f, 1.0f})
        for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::block})
          for (const bool is_self : {false, true}) {
            const KeepRule rule = keep_rule({.temperature = temperature});
            TreeCase c = random_trees(nature, 300, 20, {.temperature = temperature}, 9, kChain);
            if (is_self) c.target = c.draft;
            CAPTURE(static_cast<int>(nature));
            CAPTURE(temperature);
            CAPTURE(static_cast<int>(by));
            CAPTURE(is_self);
            const TreeResult want = verify(verify_trees_ref, c, rule, rule, by);
            const TreeResult scalar =
                verify(cpu_table(Isa::scalar).verify_trees, c, rule, rule, by);
            REQUIRE(scalar.path == want.path);
            REQUIRE(scalar.bonus == want.bonus);
            if (is_self) REQUIRE(scalar.path[0].size() == kChain.size() - 1);
            for (const Isa isa : usable_isas())
              for (const bool with_sums : {false, true})
                REQUIRE(verify(cpu_table(isa).verify_trees, c, rule, rule, by, kAllDrawn,
                               with_sums) == scalar);
          }
  }

  TEST_CASE("at temperature 0 all rules accept the same") {
    const TreeCase c = random_trees(Nature::normal, 40, 20, {.temperature = 0.7f}, 5);
    const KeepRule greedy = keep_rule({.temperature = 0});
    const TreeResult want =
        verify(cpu_table().verify_trees, c, greedy, keep_rule({}), AcceptBy::match);
    for (const AcceptBy by : {AcceptBy::sequoia, AcceptBy::block, AcceptBy::traversal})
      CHECK(verify(cpu_table().verify_trees, c, greedy, keep_rule({}), by) == want);
  }

  TEST_CASE("block is traversal on chains, and traversal is sequoia on trees of one level") {
    const auto both = [](const TreeCase& c, const KeepRule& target, AcceptBy a, AcceptBy b) {
      const KeepRule draft = keep_rule({.temperature = 0.8f});
      const TreeResult one = verify(cpu_table().verify_trees, c, target, draft, a);
      CHECK(one == verify(cpu_table().verify_trees, c, target, draft, b));
      int n = 0;
      for (const auto& path : one.path) n += static_cast<int>(path.size());
      return n;
    };
    for (const Settings& s : kSettings) {
      CAPTURE(&s - kSettings);
      const TreeCase chains = random_trees(Nature::flat, 50, 40, {.temperature = 0.8f}, 6, kChain),
                     stars = random_trees(Nature::flat, 50, 40, {.temperature = 0.8f}, 6, kStar);
      const int accepted = both(chains, keep_rule(s), AcceptBy::block, AcceptBy::traversal);
      CHECK(both(stars, keep_rule(s), AcceptBy::sequoia, AcceptBy::traversal) > 0);
      CHECK(accepted > 0);
    }
  }

  TEST_CASE("by match, and at temperature 0 by either, every token is plain sampling's") {
    for (const Settings& s : kSettings)
      for (const AcceptBy by : {AcceptBy::match, AcceptBy::sequoia}) {
        if (by == AcceptBy::sequoia && s.temperature > 0) continue;
        CAPTURE(&s - kSettings);
        const TreeCase c = random_trees(Nature::normal, 40, 20, {.temperature = 0.7f}, 5);
        const TreeResult got = verify(cpu_table().verify_trees, c, keep_rule(s), keep_rule({}), by);
        for (int b = 0; b < c.n_seqs(); ++b) {
          const auto begin = static_cast<size_t>(c.node_begin[static_cast<size_t>(b)]);
          std::vector<int32_t> seen(c.seen.begin() + 5 * b, c.seen.begin() + 5 * b + 5);
          std::vector<int32_t> visited = {0};
          const auto& path = got.path[static_cast<size_t>(b)];
          visited.insert(visited.end(), path.begin(), path.end());
          for (size_t i = 0; i < visited.size(); ++i) {
            const size_t node = begin + static_cast<size_t>(visited[i]);
            // A node's own number; those of what rejections leave are never used here.
            const double uniform =
                uniform_after(names_of(c.numbers(), b), visited[i], static_cast<int>(i), false);
            const int token = sample_row(c, node, keep_rule(s), seen, uniform);
            const bool is_last = i + 1 == visited.size();
            REQUIRE(token == (is_last ? got.bonus[static_cast<size_t>(b)]
                                      : c.tokens[begin + static_cast<size_t>(visited[i + 1])]));
            const auto* children = &c.tokens[begin] + c.first_child[node];
            const auto* end = children + c.n_children[node];
            REQUIRE((std::find(children, end, token) != end) == !is_last);
            seen.push_back(token);
          }
        }
      }
  }

  TEST_CASE("a lone root draws what plain sampling draws, by every rule") {
    for (const Settings& s : kSettings)
      for (const AcceptBy by : kRules) {
        TreeCase c = random_trees(Nature::normal, 100, 1, {}, 6);
        c.node_begin = {0, 1};
        c.n_children[0] = 0;
        const TreeResult r = verify(cpu_table().verify_trees, c, keep_rule(s), keep_rule({}), by);
        CHECK(r.path[0].empty());
        const double uniform = uniform_after(names_of(c.numbers(), 0), 0, 0, false);
        CHECK(r.bonus[0] == sample_row(c, 0, keep_rule(s), c.seen, uniform));
      }
  }

  TEST_CASE("sequences are independent of how they are divided among calls") {
    const TreeCase all = random_trees(Nature::flat, 300, 8, {}, 9);
    const KeepRule rule = keep_rule({.temperature = 0.9f, .top_p = 0.95, .penalty = 1.2f});
    const TreeResult want =
        verify(cpu_table().verify_trees, all, rule, keep_rule({}), AcceptBy::traversal);
    for (size_t b = 0; b < 8; ++b) {
      TreeCase one = all;
      one.node_begin = {all.node_begin[b], all.node_begin[b + 1]};
      one.seen_begin = {all.seen_begin[b], all.seen_begin[b + 1]};
      one.sequence = {all.sequence[b]};
      one.position = {all.position[b]};
      const TreeResult got =
          verify(cpu_table().verify_trees, one, rule, keep_rule({}), AcceptBy::traversal);
      CHECK(got.path[0] == want.path[b]);
      CHECK(got.bonus[0] == want.bonus[b]);
      CHECK(got.logprobs[0] == want.logprobs[b]);
    }
  }

  TEST_CASE("only rows that are read matter; a row without meaning ends the walk") {
    const KeepRule rule = keep_rule({});
    TreeCase c = random_trees(Nature::flat, 3, 1, {}, 30);  // three children hold all of V = 3
    REQUIRE(c.n_children[0] == 3);
    const TreeResult want = verify(cpu_table().verify_trees, c, rule, rule, AcceptBy::sequoia);
    REQUIRE(want.path[0].size() >= 1);
    const auto v = static_cast<size_t>(c.vocab);
    std::vector<bool> is_visited(c.tokens.size());
    is_visited[0] = true;
    for (const int32_t node : want.path[0]) is_visited[static_cast<size_t>(node)] = true;
    TreeCase others = c;
    for (size_t node = 0; node < c.tokens.size(); ++node)
      if (!is_visited[node]) others.target[node * v] = others.draft[node * v] = kNan;
    CHECK(verify(cpu_table().verify_trees, others, rule, rule, AcceptBy::sequoia) == want);
    for (std::vector<float>* rows : {&c.target, &c.draft}) {
      TreeCase bad = c;
      (rows == &c.target ? bad.target : bad.draft)[1] = kNan;
      const TreeResult got = verify(cpu_table().verify_trees, bad, rule, rule, AcceptBy::sequoia);
      CHECK(got.bonus[0] == kInvalidToken);
      CHECK(got.path[0].empty());
    }
    TreeCase deeper = c;
    deeper.target[static_cast<size_t>(want.path[0][0]) * v] = kInf;
    const TreeResult got = verify(cpu_table().verify_trees, deeper, rule, rule, AcceptBy::sequoia);
    CHECK(got.bonus[0] == kInvalidToken);
    CHECK(got.path[0] == std::vector<int32_t>{want.path[0][0]});
  }

  TEST_CASE("by sequences a row without meaning counts where the search comes by") {
    const KeepRule rule = keep_rule({});
    const TreeCase c = random_trees(Nature::flat, 30, 30, {}, 31, {2, 1, 1, 0, 0});
    const TreeResult want = verify(cpu_table().verify_trees, c, rule, rule, AcceptBy::traversal);
    const auto v = static_cast<size_t>(c.vocab);
    int n_first = 0, n_second = 0;
    for (size_t b = 0; b < want.path.size(); ++b) {
      // 0 -> 1 2, 1 -> 3, 2 -> 4: below node 1 all comes before node 2.
      const int begins = want.path[b].empty() ? 0 : want.path[b][0];
      n_first += begins == 1;
      n_second += begins == 2;
      const auto spoilt = [&](int node) {
        TreeCase bad = c;
        bad.target[(5 * b + static_cast<size_t>(node)) * v + 3] = kNan;
        return verify(cpu_table().verify_trees, bad, rule, rule, AcceptBy::traversal);
      };
      const TreeResult second = spoilt(2), first = spoilt(1);
      if (begins == 1) CHECK(second == want);
      if (begins == 2) CHECK(second.bonus[b] == kInvalidToken);  // else it may not be reached
      CHECK(first.bonus[b] == kInvalidToken);
      CHECK(first.path[b].empty());
    }
    CHECK(n_first > 3);
    CHECK(n_second > 3);
  }
}
