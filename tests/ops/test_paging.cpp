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

  TEST_CASE("set_pages writes the cells that it is told, and no other") {
    for (const int n : {0, 1, 1000}) {
      CAPTURE(n);
      ChangesCase c(n);
      ops::set_pages({.table = c.table.data(), .changes = c.changes.data(), .n_changes = n}, {});
      CHECK(c.table == c.changed);
    }
  }
}
