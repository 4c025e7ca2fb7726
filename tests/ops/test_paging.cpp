#include "ops/paging.h"

#include <doctest/doctest.h>

#include "kernels/page_case.h"

using namespace tandem;
using namespace tandem::test;

TEST_SUITE("ops/paging") {
  TEST_CASE("copy_page copies a page's tokens in all layers, and nothing else") {
    for (PoolCase got : pool_cases()) {
      CAPTURE(got.row_bytes);
      PoolCase want = got;
      for (int i = 0; i < kPageTokens; ++i)
        want.copy_token(4 * kPageTokens + i, 2 * kPageTokens + i);
      ops::copy_page({.pools = got.pools(), .from = 4, .to = 2}, {});
      CHECK(got.k == want.k);
      CHECK(got.v == want.v);
      ops::copy_page({.pools = got.pools(), .from = 5, .to = 5}, {});
      CHECK(got.k == want.k);
    }
  }

  TEST_CASE("move_tokens moves one token after another") {
    const MovesCase moves = moves_case();
    for (PoolCase got : pool_cases()) {
      CAPTURE(got.row_bytes);
      PoolCase want = got;
      for (size_t i = 0; i < moves.from.size(); ++i)
        if (moves.from[i] >= 0) want.copy_token(moves.from[i], moves.to[i]);
      ops::move_tokens({.pools = got.pools(),
                        .from_token = moves.from.data(),
                        .to_token = moves.to.data(),
                        .n_moves = static_cast<int>(moves.from.size())},
                       {});
      CHECK(got.k == want.k);
      CHECK(got.v == want.v);
    }
  }

  TEST_CASE("path_moves closes the gaps of a path, and leaves nodes without keys") {
    const PathCase c;
    std::vector<int32_t> from(8, 99), to(8, 99);
    PathMovesParams p = c.params();
    p.from_token = from.data();
    p.to_token = to.data();
    p.path = c.path.data();
    p.n_accepted = c.n_accepted.data();
    p.position = c.position.data();
    p.page_table = c.table.data();
    p.slot = c.slot.data();
    ops::path_moves(p, {});
    CHECK(from == c.from);
    CHECK(to == c.to);
  }

  TEST_CASE("a round leaves how it ended, and one that was laid out before catches up") {
    AheadCase c;
    std::vector<int32_t> kept(3, 99), newest(9, 99);
    int32_t turn = 1;
    const RoundEnds ends{kept.data(), newest.data(), &turn};
    ops::leave_ends({.ends = ends,
                     .newest = c.newest.data(),
                     .tokens = c.tokens.data(),
                     .path = c.path.data(),
                     .n_accepted = c.n_accepted.data(),
                     .bonus = c.bonus.data(),
                     .n_seqs = 3,
                     .n_nodes = 4},
                    {});
    CHECK(kept == c.kept);
    CHECK(newest == c.newest_after);
    CHECK(turn == 0);
    std::vector<StepRows> rows;
    // The first step has no near keys.
    std::vector<int32_t> near_page = AheadCase::near(c.steps[1].page);
    const std::vector<int32_t> near_table = AheadCase::near(c.table);
    for (AheadCase::Step& s : c.steps)
      rows.push_back({.base = s.base.data(),
                      .pos = s.pos.data(),
                      .row_page = s.page.data(),
                      .row_in_page = s.in_page.data(),
                      .tentative = s.tentative.empty() ? nullptr : s.tentative.data(),
                      .slot = c.slot.data(),
                      .page_table = c.table.data(),
                      .rows_each = s.rows_each,
                      .max_pages = 3});
    rows[1].others[1] = {near_page.data(), near_table.data()};
    ops::catch_up({.ends = ends,
                   .prior = c.prior.data(),
                   .tokens = c.next_tokens.data(),
                   .newest = c.next_newest.data(),
                   .position = c.position.data(),
                   .unread = c.unread.data(),
                   .steps = rows.data(),
                   .n_seqs = 3,
                   .n_nodes = 2,
                   .n_unread = 2,
                   .n_known_ids = c.n_known_few,
                   .n_steps = 2},
                  {});
    CHECK(c.next_tokens == c.next_want);
    CHECK(c.next_newest == c.next_newest_want);
    CHECK(c.position == c.position_want);
    CHECK(c.unread == c.unread_want);
    for (const AheadCase::Step& s : c.steps) {
      CAPTURE(s.rows_each);
      CHECK(s.base == s.base_want);
      CHECK(s.pos == s.pos_want);
      CHECK(s.page == s.page_want);
      CHECK(s.in_page == s.in_page_want);
    }
    CHECK(near_page == AheadCase::near(c.steps[1].page_want));
  }

  TEST_CASE("set_pages writes the cells that it is told, and no other") {
    for (const int n : {0, 1, 1000}) {
      CAPTURE(n);
      ChangesCase c(n);
      ops::set_pages({.table = c.table.data(), .changes = c.changes.data(), .n_changes = n}, {});
      CHECK(c.table == c.changed);
    }
  }
}
