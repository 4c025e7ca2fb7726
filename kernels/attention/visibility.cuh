#pragma once
// The visibility rule of AttentionParams for one row and the 64 keys of a page, on a GPU.
#include "kernels/attention/few_rows_split.cuh"

namespace tandem {

/// Bits of the slots [begin, end) within the page that starts at slot `first`.
__device__ inline uint64_t slot_bits(int first, int begin, int end) {
  const int lo = max(begin - first, 0), hi = min(end - first, kPageTokens);
  return lo >= hi ? 0 : (~uint64_t{0} >> (kPageTokens - (hi - lo))) << lo;
}

/// Bits of a tree's nodes that `row` sees, at the slots of the page that starts at `first`.
template <class View>
__device__ uint64_t tree_bits(const AttentionParams& p, const View& v, int row, int x, int first) {
  const int j_begin = max(first - v.base, 0), j_end = min(first + kPageTokens, v.end) - v.base;
  if (j_begin >= j_end) return 0;
  const uint64_t* mask = p.tree_mask + static_cast<int64_t>(v.first_row + row) * p.mask_words;
  // Nodes from j_begin on, then moved to their slots.
  const int word = j_begin / 64, shift = j_begin % 64;
  uint64_t bits = mask[word] >> shift;
  if (shift != 0 && word + 1 < p.mask_words) bits |= mask[word + 1] << (64 - shift);
  if (j_end - j_begin < 64) bits &= (uint64_t{1} << (j_end - j_begin)) - 1;
  if (p.window > 0 || v.key_lo > 0 || p.key_hi != INT_MAX) {
    int y = v.base + __popcll(mask[word] & ((uint64_t{1} << shift) - 1));
#pragma unroll 1  // rare, and registers are short
    for (int w = 0; w < word; ++w) y += __popcll(mask[w]);
#pragma unroll 1
    for (uint64_t left = bits; left != 0; left &= left - 1, ++y)
      if (y < v.key_lo || y >= p.key_hi || (p.window > 0 && y >= p.sinks && x - y >= p.window))
        bits &= ~(left & -left);
  }
  return bits << (v.base + j_begin - first);
}

/// Keys of the page that starts at slot `first` which row `row` of the sequence sees.
template <class View>
__device__ uint64_t visible_slots(const AttentionParams& p, const View& v, int row, int first) {
  const bool tree = p.tree_mask != nullptr;
  const int x = tree ? p.pos[v.first_row + row] : v.base + row;
  const int end = tree ? v.base : v.base + row + 1;
  uint64_t bits = slot_bits(first, v.key_lo, min(p.key_hi, end));
  if (p.window > 0)
    bits &= slot_bits(first, 0, p.sinks) | slot_bits(first, x - p.window + 1, first + kPageTokens);
  return tree ? bits | tree_bits(p, v, row, x, first) : bits;
}

/// Whether rows [row_begin, row_last] certainly see every key of the page that starts at slot
/// `first`.
__device__ inline bool all_visible(const AttentionParams& p, const SeqView& v, int row_begin,
                                   int row_last, int first, int n_keys) {
  const bool tree = p.tree_mask != nullptr;
  const int last = first + n_keys - 1;
  if (first < v.key_lo || last >= p.key_hi) return false;
  if (last >= (tree ? v.base : v.base + row_begin + 1)) return false;
  if (p.window == 0 || last < p.sinks) return true;
  return (tree ? v.end - 1 : v.base + row_last) - first < p.window;
}

}  // namespace tandem
