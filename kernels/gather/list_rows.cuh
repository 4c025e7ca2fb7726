#pragma once
// What a list of a row and head (attend_lists.h) belongs to.
#include "base/page.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/gather/score_keys.h"

namespace tandem {

/// The sequence of a row, row_begin[result] <= row < row_begin[result + 1]; row is one of theirs.
__device__ inline int sequence_of(const int32_t* row_begin, int n_seqs, int row) {
  int seq = 0, end = n_seqs;
  while (end - seq > 1) {
    const int middle = (seq + end) / 2;
    (row_begin[middle] <= row ? seq : end) = middle;
  }
  return seq;
}

/// One of the rows that choose.
struct ChoosingRow {
  int number;     // among those of the step
  int slot = -1;  // of its sequence; -1: it belongs to none

  /// i    among the rows that choose
  __device__ ChoosingRow(const ChoosingRows& p, int i) : number(p.rows.begin + i) {
    if (number < p.row_begin[p.n_seqs]) slot = p.slot[sequence_of(p.row_begin, p.n_seqs, number)];
  }
  __device__ bool exists() const { return slot >= 0; }
};

/// One list of a call; Params has the arrays of AttendListsParams.
struct ListOf {
  int row, head, kv_head;  // the first of its query heads
  int slot = -1;           // of the row's sequence; -1: the row belongs to none

  template <class Params>
  __device__ ListOf(const Params& p, int number) {
    const int a_row = p.n_heads / p.lists.heads;
    row = number / a_row;
    head = number % a_row * p.lists.heads;
    kv_head = head / (p.n_heads / p.n_kv_heads);
    if (row < p.row_begin[p.n_seqs]) slot = p.slot[sequence_of(p.row_begin, p.n_seqs, row)];
  }
  __device__ bool exists() const { return slot >= 0; }
  /// The row of the pools that holds a token.
  template <class Params>
  __device__ int pool_row(const Params& p, int token) const {
    const int page = p.page_table[int64_t{slot} * p.max_pages + token / kPageTokens];
    return (page * p.n_kv_heads + kv_head) * kPageTokens + token % kPageTokens;
  }
};

}  // namespace tandem
