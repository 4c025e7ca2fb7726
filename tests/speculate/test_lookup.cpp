#include <doctest/doctest.h>

#include <algorithm>

#include "base/rng.h"
#include "engine_runs.h"
#include "lookup_case.h"
#include "ops/verification.h"
#include "speculate/draft/lookup_drafter.h"

using namespace tandem;
using namespace tandem::test;
using namespace tandem::speculate;

namespace {

/// By reading the whole text for every length of agreement.
Ids look_up(const Ids& tokens, int longest, int length) {
  for (int n = std::min(longest, static_cast<int>(tokens.size()) - 1); n > 0; --n)
    for (auto end = tokens.end() - 1; end - tokens.begin() >= n; --end)
      if (std::equal(end - n, end, tokens.end() - n))
        return {end, end + std::min<std::ptrdiff_t>(length, tokens.end() - end)};
  return {};
}

Ids found(const LookupIndex& index, const Ids& tokens, int longest, int length) {
  const std::span<const int32_t> next = index.find(tokens, longest, length);
  return {next.begin(), next.end()};
}

}  // namespace

TEST_SUITE("speculate/lookup") {
  TEST_CASE("what followed the longest, latest agreement") {
    const auto proposed = [](const Ids& tokens) {
      LookupIndex index;
      index.extend(tokens);
      CHECK(found(index, tokens, 3, 4) == look_up(tokens, 3, 4));
      return found(index, tokens, 3, 4);
    };
    CHECK(proposed({7}).empty());
    CHECK(proposed({1, 2, 3, 4}).empty());
    CHECK(proposed({1, 2, 3, 1}) == Ids{2, 3, 1});
    CHECK(proposed({5, 5}) == Ids{5});
    // Two agree at place 1 with 9 behind them, one agrees later with 8 behind it.
    CHECK(proposed({1, 2, 9, 2, 8, 1, 2}) == Ids{9, 2, 8, 1});
    // The latest of equals; at most four.
    CHECK(proposed({1, 6, 1, 7, 3, 3, 3, 3, 1}) == Ids{7, 3, 3, 3});
  }

  TEST_CASE("as by reading the whole text, however it grows") {
    PhiloxStream draw(3);
    int proposals = 0;
    for (const int vocab : {1, 2, 5, 60})
      for (const int longest : {1, 2, 3, 8}) {
        CAPTURE(vocab);
        CAPTURE(longest);
        LookupIndex index;
        Ids tokens;
        while (tokens.size() < 400) {
          for (int i = 0, n = 1 + static_cast<int>(draw.uniform() * 4); i < n; ++i)
            tokens.push_back(static_cast<int32_t>(draw.uniform() * vocab) - 1);
          index.extend(tokens);
          const Ids want = look_up(tokens, longest, 5);
          REQUIRE(found(index, tokens, longest, 5) == want);
          proposals += want.empty() ? 0 : 1;
        }
      }
    CHECK(proposals > 1500);
  }

  TEST_CASE("on the device as by the index, tentative tokens included") {
    PhiloxStream draw(5);
    int proposals = 0, texts = 0;
    for (const int vocab : {1, 2, 5, 60})
      for (int longest = 1; longest <= 8; ++longest)
        for (const int nodes : {1, 2, 9})
          for (const int tentative : {0, 1, 12}) {
            CAPTURE(vocab);
            CAPTURE(longest);
            CAPTURE(nodes);
            CAPTURE(tentative);
            LookupCase c(draw, vocab, longest, nodes, tentative, 300);
            ProposeLookupParams p = c.params();
            p.tokens = c.tokens.data();
            p.n_children = c.children.data();
            p.n_proposed = c.proposed.data();
            p.seen = c.seen.data();
            p.seen_begin = c.seen_begin.data();
            // Before the first round within there are none, and no numbers of them.
            p.chain_length = tentative > 0 ? c.length.data() : nullptr;
            ops::propose_lookup(p, {});
            REQUIRE(c.tokens == c.tokens_want);
            REQUIRE(c.children == c.children_want);
            REQUIRE(c.proposed == c.proposed_want);
            texts += c.n_seqs();
            for (const int32_t n : c.proposed) proposals += n > 0 ? 1 : 0;
          }
    CHECK(proposals > texts / 3);
    CHECK(proposals < texts * 2 / 3);  // of chains of a root alone none has any
  }

  TEST_CASE("a round takes the shortest chain that holds what any sequence proposes") {
    LookupDrafter drafter(3, 6);
    const auto nodes = [&](const std::vector<Ids>& batch) {
      std::vector<decode::DrawSeq> seqs;
      for (const Ids& tokens : batch)
        seqs.push_back(
            {.seq = 0, .slot = static_cast<int>(seqs.size()), .position = 1, .tokens = tokens});
      const int n = drafter.shape(seqs).size();
      for (const decode::DrawSeq& s : seqs) drafter.forget(s.slot);
      return n;
    };
    CHECK(nodes({{1, 2, 3}}) == 1);  // a plain step
    CHECK(nodes({{5, 5}}) == 2);
    CHECK(nodes({{1, 2, 1}, {3}}) == 4);  // two tokens
    CHECK(nodes({{1, 2, 1}, {1, 2, 3, 4, 5, 1}}) == 7);
    CHECK(drafter.largest().size() == 7);
  }
}
