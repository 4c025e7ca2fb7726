#pragma once
// The choice of keys by the votes of a window of queries, on a GPU: key_votes.h for all KV heads of
// a layer, and the selection of the best, by votes or by the scores that attention leaves. Pointers
// lie in device memory.
#include <stddef.h>

#include "base/page.h"
#include "base/types.h"

namespace tandem {

struct KeyVotesCudaParams {
  float* votes;  // [n_kv_heads, vote_stride] out
  int64_t vote_stride;
  // Queries of token t at row t % capacity, [capacity, n_heads, d] of dtype; n_heads of all KV
  // heads.
  const void* q;
  int capacity, n_heads;
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // of the sequence
  int first_position, n_positions, n_kv_heads, d;
  DType dtype;  // f32 or bf16
  float scale;
  void* scratch;         // [key_votes_cuda_scratch_bytes], 16-byte aligned
  float* lse = nullptr;  // [n_positions, n_heads] out: natural log, scale included; may be null
};

/// Keys whose softmax state one block works out.
inline constexpr int kVoteSplitTokens = 1024;
constexpr size_t key_votes_cuda_scratch_bytes(int max_tokens, int n_positions, int n_heads) {
  const size_t states = static_cast<size_t>(max_tokens) / kVoteSplitTokens + 2;
  return states * static_cast<size_t>(n_positions) * static_cast<size_t>(n_heads) * 2 *
         sizeof(float);
}

/// votes[h][t] as key_votes of KV head h.
/// numerics f32, sums in an order that follows from the numbers of keys and queries alone
/// cost     reads the keys twice, 4 d flops and two exponentials a query and key
/// errors   none (preconditions checked by the caller)
void key_votes_cuda(const KeyVotesCudaParams&, Stream);

struct ChooseKeysParams {
  // out: list h begins at h * id_stride. First the tokens before `sinks`, then the best of [sinks,
  // n), `n_chosen` in all; ascending.
  int32_t* ids;
  int64_t id_stride;
  const float* votes;  // [n_lists, vote_stride] 0 or more
  float* pooled;       // [n_lists, vote_stride] scratch
  int64_t vote_stride;
  int n_lists, n, n_chosen, sinks;  // sinks <= n_chosen <= n
  int pool;                         // neighbours that an average is over, an odd number
};

/// Averages votes over neighbours, with zeros past the ends, and takes the tokens of the largest
/// averages; of equal ones at the threshold the lowest tokens.
/// numerics the neighbours of a token are added in their order, as on the CPU: the same choice from
///          the same votes
/// errors   none (preconditions checked by the caller)
void choose_keys_cuda(const ChooseKeysParams&, Stream);

/// Lists for attention (KeyLists) of all sequences of a step and all layers that have lists, by the
/// scores that the step has left (KeyScores) of the keys before it.
struct ChooseScoredParams {
  int32_t* ids;    // out: of row r of the page table, layer l and head h at r * row_stride + (l *
                   // n_kv_heads + h) * id_stride; n_chosen, ascending
  int32_t* count;  // [rows, n_kv_heads] out
  int32_t* rest;   // [rows] out: the tokens from here on are in no list
  int64_t row_stride;
  int id_stride;
  const f16* scores;  // of row r, layer l and head h at r * score_row_stride + (layers[l] *
                      // n_kv_heads + h) * score_stride; 16-byte aligned, strides multiples of 64
  const int32_t* layers;  // [n_layers]
  int64_t score_row_stride, score_stride;
  // The step's arrays, as kernels/attention/attention.h has them.
  const int32_t *slot, *row_begin, *base;
  int n_seqs, n_layers, n_kv_heads;
  int n_chosen;  // 1 or more
  int recent;    // tokens before the step that are in no list
};

/// Takes the best of the first base - recent keys; of equal ones at the threshold the lowest.
/// Sequences without rows, and those of at most n_chosen + recent tokens, keep what they have. What
/// is chosen follows from device memory alone: a recorded graph serves sequences that grow.
/// numerics an order of f16: the CPU's choice from the same scores
/// cost     reads the scores three times, two of them from L2
/// errors   none (preconditions checked by the caller)
void choose_scored_cuda(const ChooseScoredParams&, Stream);

}  // namespace tandem
