#pragma once
// The attention that a window of queries pays to every key: contract. No STL: included by sources
// with per-ISA flags.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

struct KeyVotesParams {
  float* votes;          // [first_position + n_positions] out
  const float* q;        // [n_positions, n_heads, d]
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // page table of the sequence: token t lies in pages[t / 64], row t % 64
  int first_position;    // of the first query; a query at position p sees the tokens 0 .. p
  int n_positions;       // consecutive ones
  int n_heads;           // query heads of the KV head
  int n_kv_heads, kv_head, d;
  DType dtype;  // f32 or bf16
  float scale;
  float* scratch;        // [key_votes_scratch]
  float* lse = nullptr;  // [n_positions, n_heads] out: natural log, scale included; may be null
};

/// Floats of scratch for d and a number of queries.
constexpr int64_t key_votes_scratch(int d, int n_queries) {
  return int64_t{d} * kPageTokens + 2 * int64_t{n_queries};
}

/// votes[t] = sum over all queries of the softmax of scale q.k over the keys that a query sees, at
/// key t.
/// numerics f32; the sums of a vote are in the order of the queries, those of a product in the
///          order of the elements, so neither depends on how text was divided. |votes - ref| <=
///          2e-5 of the queries' number; scores beyond f32 count as its largest number
/// cost     reads the keys twice from memory; 4 d flops and two exponentials a query and key
/// errors   none
using KeyVotesFn = void(const KeyVotesParams&);
KeyVotesFn key_votes_ref, key_votes_scalar, key_votes_avx2, key_votes_avx512;

}  // namespace tandem
