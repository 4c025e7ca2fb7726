#pragma once
// Hash tables over blocks of tokens: contract. No STL: included by sources with per-ISA flags.
//
// Tokens are cut into blocks of at most kHashBlockTokens. A block holds, for every table, its token
// numbers (u16, within the block) sorted by bucket and ascending inside a bucket, and where each
// bucket begins. Half the bytes of 32-bit ids at any context length, counters that fit L1, and
// results in ascending order, which the gather that follows wants.
#include "base/types.h"

namespace tandem {

inline constexpr int kHashBlockTokens = 32768;

/// Tables of one block of tokens under one KV head.
struct HashBlock {
  uint16_t* offsets;  // [tables, buckets + 1], buckets = 2^bits
  uint16_t* ids;      // [tables, capacity]
  int capacity;       // tokens, <= kHashBlockTokens
  int n_tokens;       // tokens held
};

struct HashCodesParams {
  uint16_t* codes;       // [n_tables, code_stride], table-major; out
  int64_t code_stride;   // >= n_tokens
  const uint64_t* bits;  // [n_tokens, words] of sign_project
  int64_t words;
  int code_bits;  // 1..16; the code of table t is code_bits bits from bit t * code_bits on
  int n_tokens;
};
/// Cuts rows of sign bits into codes for tables [begin, end) of the rows' bits; table `begin` is
/// written to codes + begin * code_stride.
void hash_codes(const HashCodesParams&, Range tables);

struct HashAppendParams {
  HashBlock block;
  const uint16_t* codes;  // [tables, code_stride] of the new tokens
  int64_t code_stride;
  int code_bits;
  int n_new;          // block.n_tokens + n_new <= capacity
  uint32_t* scratch;  // [2^code_bits + 1 + n_new]; one per concurrent call
};
/// Adds tokens n_tokens .. n_tokens + n_new - 1 to tables [begin, end); the caller then raises
/// n_tokens. With n_tokens = 0 it is the build: the old contents of offsets and ids do not matter.
/// cost     a counting sort: about 2 ns a new id; old ids are moved once (2 bytes each)
void hash_append(const HashAppendParams&, Range tables);

struct HashProbeParams {
  HashBlock block;
  const uint16_t* codes;  // [tables] of the query
  int tables, code_bits;
  int min_hits;       // 1..255, <= tables
  int first_id;       // added to every result
  uint8_t* counters;  // scratch [capacity rounded up to 64], 64-byte aligned
  int32_t* ids;       // out: ascending; room for n_tokens + 16
};
/// Tokens that share the query's bucket in at least min_hits tables. Returns how many.
/// numerics exact; counters saturate, so any number of tables is right
using HashProbeFn = int(const HashProbeParams&);
HashProbeFn hash_probe_ref, hash_probe_scalar, hash_probe_avx2, hash_probe_avx512;

}  // namespace tandem
