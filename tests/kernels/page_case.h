#pragma once
#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kernels/page/catch_up.h"
#include "kernels/page/page.h"

/// Data for tests of the operations on pages, on either device.
namespace tandem::test {

/// Paged pools of K and V on the host.
struct PoolCase {
  int n_layers, n_pages, n_kv_heads, row_bytes;
  std::vector<unsigned char> k, v;

  PoolCase(int layers, int pages, int kv_heads, int bytes_of_row)
      : n_layers(layers), n_pages(pages), n_kv_heads(kv_heads), row_bytes(bytes_of_row) {
    PhiloxStream draw(3);
    for (std::vector<unsigned char>* pool : {&k, &v}) {
      pool->resize(static_cast<size_t>(layers * pages * kv_heads * kPageTokens * bytes_of_row));
      for (unsigned char& byte : *pool) byte = static_cast<unsigned char>(draw.next());
    }
  }
  /// With pointers into a device's copies of k and v.
  PagePools pools(void* k_pool, void* v_pool) const {
    return {k_pool, v_pool, n_layers, n_pages, n_kv_heads, row_bytes};
  }
  PagePools pools() { return pools(k.data(), v.data()); }
  /// Copies one token's rows, given as page * 64 + slot in it, one byte after another.
  void copy_token(int from, int to) {
    for (std::vector<unsigned char>* pool : {&k, &v})
      for (int layer = 0; layer < n_layers; ++layer)
        for (int head = 0; head < n_kv_heads; ++head)
          for (int byte = 0; byte < row_bytes; ++byte)
            (*pool)[at(layer, to, head, byte)] = (*pool)[at(layer, from, head, byte)];
  }

 private:
  size_t at(int layer, int token, int head, int byte) const {
    const int page = layer * n_pages + token / kPageTokens;
    return static_cast<size_t>(
        ((page * n_kv_heads + head) * kPageTokens + token % kPageTokens) * row_bytes + byte);
  }
};

/// Rows that suit wide accesses, that do not, and small ones.
inline std::vector<PoolCase> pool_cases() {
  return {PoolCase(3, 6, 2, 256), PoolCase(2, 6, 3, 14), PoolCase(1, 6, 1, 24)};
}

struct MovesCase {
  std::vector<int32_t> from, to;
};
/// Each target was read by an earlier move, one page ends within, one token stays, and one move
/// is none.
inline MovesCase moves_case() {
  const int32_t pages[] = {4, 1, 3};
  const auto token = [&](int i) { return pages[i / kPageTokens] * kPageTokens + i % kPageTokens; };
  MovesCase c;
  for (int i = 0; i < 19; ++i) {
    c.from.push_back(token(i == 0 ? 120 : 121 + 2 * i));
    c.to.push_back(token(120 + i));
  }
  c.from.push_back(-1);
  c.to.push_back(token(5));
  return c;
}

/// Two texts of 70 and 127 tokens in pages that are not in order; trees of 9 nodes, the last 2
/// without keys. The first keeps nodes 1, 3, 8, the second 2 and 6, over the end of a page. Their
/// tables stand in rows 2 and 0.
struct PathCase {
  std::vector<int32_t> table{7, 0, 5, -1, -1, -1, 4, 2, -1};
  std::vector<int32_t> slot{2, 0}, position{70, 127}, n_accepted{3, 2};
  std::vector<int32_t> path{1, 3, 8, -1, -1, -1, -1, -1, -1, 2, 6, -1, -1, -1, -1, -1, -1, -1};
  // Roots are tokens 69 and 126: node 3 goes from token 72 to 71; 2 from 128 to 127, 6 from 132 to
  // 128.
  std::vector<int32_t> from{-1, 2 * 64 + 8, -1, -1, 5 * 64, 5 * 64 + 4, -1, -1};
  std::vector<int32_t> to{-1, 2 * 64 + 7, -1, -1, 63, 5 * 64, -1, -1};

  /// All but the pointers.
  PathMovesParams params() const {
    PathMovesParams p{};
    p.n_seqs = 2;
    p.n_nodes = 9;
    p.max_pages = 3;
    p.max_moves = 4;
    p.n_nodes_held = 7;
    return p;
  }
};

/// How a round of three sequences ended, and the next one of two of them and a new one, laid out
/// before: sequence 2 in place 0, sequence 0 in place 1. Of the two steps the second follows a row
/// of the first.
struct AheadCase {
  // The last round: a path of two, none, and one whose end had no meaning.
  std::vector<int32_t> tokens{10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33};
  std::vector<int32_t> path{1, 3, -1, -1, -1, -1, -1, -1, 2, -1, -1, -1}, n_accepted{2, 0, 1};
  std::vector<int32_t> bonus{14, 24, -5};
  std::vector<int32_t> newest{8, 9, 10, 18, 19, 20, 28, 29, 30};
  std::vector<int32_t> kept{3, 1, 2}, newest_after{11, 13, 14, 19, 20, 24, 30, 32, 0};
  // The next:
  std::vector<int32_t> prior{2, 0, -1};
  std::vector<int32_t> next_tokens{30, -1, 10, -1, 40, -1}, next_want{0, -1, 14, -1, 40, -1};
  std::vector<int32_t> next_newest{28, 29, 30, 8, 9, 10, 38, 39, 40},
      next_newest_want{30, 32, 0, 11, 13, 14, 38, 39, 40};
  std::vector<int32_t> position{65, 127, 9}, position_want{67, 130, 9};
  std::vector<int32_t> unread{29, 30, 9, 10, 39, 40}, unread_want{0, 0, 13, 0, 39, 40};
  int n_known_few = 14;
  /// Pages of a second store of the same tokens.
  static std::vector<int32_t> near(std::vector<int32_t> pages) {
    for (int32_t& page : pages) page += 100;
    return pages;
  }
  std::vector<int32_t> table{5, 6, 7, 8, 9, 10, 11, 12, 13}, slot{1, 0, 2};
  struct Step {
    int rows_each;
    std::vector<int32_t> tentative, base, pos, page, in_page;
    std::vector<int32_t> base_want, pos_want, page_want, in_page_want;
  };
  std::vector<Step> steps{{.rows_each = 1,
                           .tentative = {},
                           .base = {64, 126, 8},
                           .pos = {64, 126, 8},
                           .page = {9, 6, 11},
                           .in_page = {0, 62, 8},
                           .base_want = {66, 129, 8},
                           .pos_want = {66, 129, 8},
                           .page_want = {9, 7, 11},
                           .in_page_want = {2, 1, 8}},
                          {.rows_each = 2,
                           .tentative = {1, 1, 1},
                           .base = {64, 124, 8},
                           .pos = {65, 65, 125, 126, 9, 9},
                           .page = {9, 9, 6, 6, 11, 11},
                           .in_page = {1, 2, 61, 62, 9, 10},
                           .base_want = {66, 127, 8},
                           .pos_want = {67, 67, 128, 129, 9, 9},
                           .page_want = {9, 9, 7, 7, 11, 11},
                           .in_page_want = {3, 4, 0, 1, 9, 10}}};
};

/// A page table, changes of every second cell, and the table after them.
struct ChangesCase {
  std::vector<int32_t> table = std::vector<int32_t>(2001, -1), changed = table;
  std::vector<PageChange> changes;

  explicit ChangesCase(int n) {
    for (int i = 0; i < n; ++i) {
      changes.push_back({2 * i + 1, 7 * i});
      changed[static_cast<size_t>(2 * i + 1)] = 7 * i;
    }
  }
};

}  // namespace tandem::test
