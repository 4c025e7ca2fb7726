#pragma once
// The opponent, for benches only: tables and probe as the reference program of MagicPIG has them
// (its library/lsh), rewritten from a description of its loops. No STL: included by sources with
// per-ISA flags.
#include "base/types.h"

namespace tandem {

/// Tables over all tokens under one KV head.
struct PaperTables {
  int32_t* start;  // [tables, buckets]
  int32_t* end;    // [tables, buckets]; an empty bucket has start = end = 0
  int32_t* ids;    // [tables, n_tokens]
  int n_tokens, code_bits;
};

/// Fills tables [begin, end) from codes [tables, code_stride]. Ids of a bucket ascend, which the
/// original, with its unstable sort, does not promise: the difference favours the opponent.
void hash_build_paper(const PaperTables&, const uint16_t* codes, int64_t code_stride, Range tables);

struct HashProbePaperParams {
  PaperTables block;
  const int32_t* codes;  // [tables] of the query
  int tables;
  uint8_t* marks;  // scratch [n_tokens]
  int32_t* ids;    // out [n_tokens]: in the order of their second hit
};
/// Tokens that share the query's bucket in at least two tables. Returns how many.
using HashProbePaperFn = int(const HashProbePaperParams&);
HashProbePaperFn hash_probe_paper_scalar, hash_probe_paper_avx2, hash_probe_paper_avx512;

}  // namespace tandem
