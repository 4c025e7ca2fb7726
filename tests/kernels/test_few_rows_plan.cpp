#include <doctest/doctest.h>

#include <algorithm>

#include "base/gpu_cards.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/few_rows_plan.h"

using namespace tandem;

TEST_SUITE("kernels/few_rows_plan") {
  TEST_CASE("chunks hold each page of a pair once, and are no more than the rule says") {
    struct Heads {
      int all, kv, dim;
    };
    size_t checked = 0;
    for (const int multiprocessors : {1, 58, 132, 170})
      for (const Heads h : {Heads{32, 8, 128}, {8, 8, 64}, {28, 4, 128}, {16, 1, 80}})
        for (const int n_seqs : {1, 2, 7, 64})
          for (const int rows : {1, 3, 16, 100})
            for (const bool plain : {false, true})
              for (const int bound : {0, 1, 2})  // 1: lists, 2: a window
                for (const int pages : {1, 2, 5, 6, 7, 16, 33, 100, 1000, 2000}) {
                  const FewRowsShape shape{.n_seqs = n_seqs,
                                           .n_heads = h.all,
                                           .n_kv_heads = h.kv,
                                           .head_dim = h.dim,
                                           .max_rows = rows,
                                           .max_tokens = pages * kPageTokens,
                                           .plain = plain,
                                           .multiprocessors = multiprocessors,
                                           .lists = bound == 1,
                                           .window = bound == 2};
                  const SplitRule rule = split_rule(shape);
                  CAPTURE(multiprocessors);
                  CAPTURE(n_seqs);
                  CAPTURE(rows);
                  CAPTURE(pages);
                  CHECK(rule.max_tiles * rule.tile_queries >= rows * rule.group);
                  // A sequence may be shorter; its list may end in a page of its own.
                  for (const int n : {1, pages / 2 + 1, pages, pages + (bound == 1 ? 1 : 0)}) {
                    const PairChunks c = rule.divide(n);
                    const int large = c.n_large * c.large_pages;
                    REQUIRE(c.count() >= 1);
                    CHECK(c.count() <= rule.max_chunks);
                    CHECK(large + c.n_small * c.small_pages >= n);
                    // The last chunk is not empty.
                    CHECK((c.n_small > 0 ? large + (c.n_small - 1) * c.small_pages
                                         : large - c.large_pages) < n);
                    ++checked;
                  }
                }
    CHECK(checked == 4 * 4 * 4 * 4 * 4 * 2 * 3 * 10);
  }

  TEST_CASE("memory does not shrink when a bound grows, and holds every call within the bounds") {
    for (const char* name : {"l4", "rtx-4090", "h200"}) {
      CAPTURE(name);
      const int multiprocessors = find_gpu_card(name)->multiprocessors;
      const AttentionBounds bounds{3, 9, 3000, 8, 2, 64, multiprocessors, 90};
      AttentionBounds more = bounds, few = bounds;
      few.max_tokens = 200;  // chunks of a page each
      const size_t without_lists = attention_few_rows_workspace_bytes(few);
      few.lists = true;
      CHECK(attention_few_rows_workspace_bytes(few) > without_lists);
      size_t before = attention_few_rows_workspace_bytes(bounds),
             counters = attention_few_rows_counter_bytes(bounds);
      CHECK(before % 256 == 0);
      AttentionBounds with_lists = bounds, with_scores = bounds;
      with_lists.lists = true;
      const size_t any_lists = attention_few_rows_workspace_bytes(with_lists);
      with_scores.scores = true;
      const size_t scored = attention_few_rows_workspace_bytes(with_scores);
      CHECK(scored > before);
      for (int n_seqs = 1; n_seqs <= 3; ++n_seqs)
        for (const int rows : {1, 9, 90 / n_seqs})
          for (const bool plain : {false, true}) {
            FewRowsShape call{n_seqs, 8, 2, 64, rows, 3000, plain, multiprocessors};
            const auto bytes_of = [](const FewRowsShape& x) {
              return few_rows_ml_bytes(x, split_rule(x)) + few_rows_o_bytes(x, split_rule(x));
            };
            CHECK(any_lists >= bytes_of(call));
            call.window = true;
            CHECK(before >= bytes_of(call));
            call.window = false;
            call.lists = true;
            CHECK(any_lists >= bytes_of(call));
            call.lists = false;
            const SplitRule rule = split_rule(call);
            const auto pairs = static_cast<size_t>(n_seqs * 2 * rule.max_tiles);
            const size_t states =
                pairs * static_cast<size_t>(rule.max_chunks) * static_cast<size_t>(rule.queries);
            CHECK(few_rows_ml_bytes(call, rule) >= states * 2 * sizeof(float));
            CHECK(before >= few_rows_ml_bytes(call, rule) + states * 64 * sizeof(float));
            CHECK(counters >= (1 + pairs) * sizeof(unsigned));
            // Scores of several tiles come after both; those of one need no room here.
            const size_t tiles = rule.max_tiles == 1 ? 0 : pairs * 3008 * sizeof(f16);
            CHECK(scored >= few_rows_ml_bytes(call, rule) + few_rows_o_bytes(call, rule) + tiles);
          }
      for (int* bound : {&more.max_seqs, &more.max_rows, &more.max_tokens, &more.max_tree_rows})
        for (int i = 0; i < 4; ++i) {
          *bound *= 2;
          const size_t now = attention_few_rows_workspace_bytes(more);
          CHECK(now >= before);
          before = now;
        }
    }
  }

  TEST_CASE("one long sequence is divided among the multiprocessors that a card has") {
    const auto bytes = [](const char* name) {
      return attention_few_rows_workspace_bytes(
          {1, 1, 98304, 16, 4, 128, find_gpu_card(name)->multiprocessors});
    };
    CHECK(bytes("l4") < bytes("h200"));
    CHECK(bytes("h200") < bytes("rtx-5090"));
    CHECK(bytes("h100") == bytes("h200"));
  }
}
