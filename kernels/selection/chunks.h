#pragma once
// Chunks of a text's keys, known by their means, and what queries say of them (TriForce): contract.
// No STL: included by sources with per-ISA flags.
#include "base/page.h"
#include "base/types.h"

namespace tandem {

struct ChunkMeansParams {
  void* means;           // out: of the i-th chunk at row i, [n, d] of dtype
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // page table of the sequence: token t lies in pages[t / 64], row t % 64
  int token, n, chunk;   // n chunks from `token` on, a multiple of `chunk`, which divides 64
  int n_kv_heads, kv_head, d;
  DType dtype;  // f32 or bf16
};
/// The arithmetic mean of each chunk's keys.
/// numerics sums in f32 in the order of the tokens, rounded to dtype once: the same bits from every
///          variant and device
/// cost     reads the keys once
using ChunkMeansFn = void(const ChunkMeansParams&);
ChunkMeansFn chunk_means_ref, chunk_means_scalar, chunk_means_avx2, chunk_means_avx512;

struct ChunkScoresParams {
  float* scores;      // [n] out
  const float* q;     // [n_q, d]
  const void* means;  // [n, d] of dtype
  int n, n_q, d;      // n_q >= 1
  DType dtype;        // f32 or bf16
};
/// The largest product of a query with each mean.
/// numerics f32, the same sums in the same order for every mean, so that equal ones score equally;
///          products beyond f32 count as its largest number, NaN as its lowest
/// cost     reads the means once for all queries
using ChunkScoresFn = void(const ChunkScoresParams&);
ChunkScoresFn chunk_scores_ref, chunk_scores_scalar, chunk_scores_avx2, chunk_scores_avx512;

}  // namespace tandem
