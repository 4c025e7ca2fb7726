#pragma once
// Which keys of a page a row sees, as a 64-bit word, and the same question for a run of rows at
// once: the rule of AttentionParams for the CPU's optimised code and the GPU's prefill, which is
// why the functions are constexpr. The GPU's decode evaluates it in visibility.cuh, for the slots
// of a split.
#include "kernels/attention/attention.h"

namespace tandem {
namespace {

/// One sequence of the call.
struct Sequence {
  const int32_t* pages;
  int first_row, n_rows;
  int base;    // of the slots before it positions alone decide: the committed ones, and of a chain
               // the tentative ones; a chain's row 0 has this slot
  int end;     // slots from here on were never written
  int key_lo;  // the stricter of the call's and the sequence's
};

constexpr Sequence sequence_of(const AttentionParams& p, int s) {
  const int own = p.seq_key_lo == nullptr ? 0 : p.seq_key_lo[s];
  const int n_rows = p.row_begin[s + 1] - p.row_begin[s];
  const int first = p.base[s] + (p.tentative == nullptr ? 0 : p.tentative[s]);
  return {.pages = pages_of(p, s),
          .first_row = p.row_begin[s],
          .n_rows = n_rows,
          .base = p.tree_mask != nullptr ? p.base[s] : first,
          .end = first + n_rows,
          .key_lo = own > p.key_lo ? own : p.key_lo};
}

constexpr int position(const AttentionParams& p, const Sequence& s, int row) {
  return p.tree_mask != nullptr ? p.pos[s.first_row + row] : s.base + row;
}

/// Bits of the slots [begin, end) within the page that starts at slot `page_begin`.
constexpr uint64_t bits_between(int page_begin, int begin, int end) {
  const int lo = begin > page_begin ? begin - page_begin : 0;
  const int hi = end < page_begin + kPageTokens ? end - page_begin : kPageTokens;
  if (lo >= hi) return 0;
  return (~uint64_t{0} >> (kPageTokens - (hi - lo))) << lo;
}

constexpr int count_bits(uint64_t bits) {
  int n = 0;
  for (; bits != 0; bits &= bits - 1) ++n;
  return n;
}

/// Keys of page `page` that row `row` of the sequence sees: bit t = slot 64 * page + t.
constexpr uint64_t visible_keys(const AttentionParams& p, const Sequence& s, int row, int page) {
  const int first = page * kPageTokens, x = position(p, s, row);
  const bool tree = p.tree_mask != nullptr;
  const int end = tree ? s.base : s.base + row + 1;  // slots whose position is the slot itself
  uint64_t bits = bits_between(first, s.key_lo, p.key_hi < end ? p.key_hi : end);
  if (p.window > 0)
    bits &= bits_between(first, 0, p.sinks) | bits_between(first, x - p.window + 1, INT_MAX);
  if (!tree) return bits;
  const uint64_t* mask =
      p.tree_mask + static_cast<size_t>(s.first_row + row) * static_cast<size_t>(p.mask_words);
  const int begin = first > s.base ? first : s.base;
  const int node_end = first + kPageTokens < s.end ? first + kPageTokens : s.end;
  int y = s.base;
  for (int j = 0; j < begin - s.base; j += 64)
    y += count_bits(mask[j / 64] & bits_between(j, 0, begin - s.base));
  for (int slot = begin; slot < node_end; ++slot) {
    const int j = slot - s.base;
    if (((mask[j / 64] >> (j % 64)) & 1u) == 0) continue;
    if (y >= s.key_lo && y < p.key_hi && (p.window == 0 || y < p.sinks || x - y < p.window))
      bits |= uint64_t{1} << (slot - first);
    ++y;
  }
  return bits;
}

enum class Seen : uint8_t { none, some, all };

/// What the rows [row_begin, row_last] see of a page, without asking each: `some` may stand for
/// either of the others, which are certain.
constexpr Seen page_seen(const AttentionParams& p, const Sequence& s, int row_begin, int row_last,
                         int page) {
  const int first = page * kPageTokens, last = first + kPageTokens - 1;
  const bool tree = p.tree_mask != nullptr;
  if (tree && last >= s.base) return Seen::some;
  if (last < s.key_lo || first >= p.key_hi) return Seen::none;
  // Positions of the rows: a tree's lie anywhere from its base on.
  const int x_first = tree ? s.base : s.base + row_begin;
  const int x_last = tree ? s.end - 1 : s.base + row_last;
  if (first > x_last) return Seen::none;
  const bool in_range = first >= s.key_lo && last < p.key_hi && (tree || last <= x_first);
  if (p.window == 0) return in_range ? Seen::all : Seen::some;
  if (first >= p.sinks && x_first - last >= p.window) return Seen::none;
  const bool in_window = last < p.sinks || x_last - first < p.window;
  return in_range && in_window ? Seen::all : Seen::some;
}

}  // namespace
}  // namespace tandem
