#pragma once
// Hash tables over blocks of tokens (hash_tables.h) on a GPU: how keys enter them, and the lists of
// keys that share buckets with queries. Pointers lie in device memory.
#include "kernels/gather/score_keys.h"
#include "kernels/lsh/split_projections.h"

namespace tandem {

/// Seeded projections, and the codes that their signs make.
struct HashRule {
  const float* w;  // [d, w_stride]; columns of tables rounded up to a multiple of 32 are readable
  int64_t w_stride;
  // Of as many columns (split_projections):
  const ProjectionPart* parts;
  const float* columns;
  float longest;          // of the columns
  int tables, code_bits;  // code_bits 1..16
};

/// Parts of a sequence that are summed side by side.
inline constexpr int kMeanParts = 64;

struct MeanKeysParams {
  float* mean;           // [n_kv_heads, d] out
  double* sums;          // scratch [kMeanParts, n_kv_heads, d]
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // of the sequence
  Range tokens;
  int n_kv_heads, d;  // d <= 1024
  DType dtype;        // f32 or bf16
};
/// The mean key of each KV head.
/// numerics sums in f64: the CPU's mean, but where f64 rounds sums in another order across a bound
///          between two numbers of f32, one element in some 10^8; sums of bf16 are mostly exact
/// cost     reads the keys once
/// errors   none (preconditions checked by the caller)
void mean_keys_cuda(const MeanKeysParams&, Stream);

/// Codes of some KV heads' keys under all tables: of head i, table t and key j at i * head_stride +
/// t * table_stride + j.
struct KeyHashes {
  uint16_t* at;
  int64_t head_stride, table_stride;
};

struct HashKeysParams {
  KeyHashes codes;  // out, of `heads`
  float* norms;     // out: |k - center| of KV head h's token i at h * norm_stride + i
  int64_t norm_stride;
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // of the sequence
  const float* centers;  // [n_kv_heads, d]
  HashRule rule;
  int token, n, n_kv_heads, d;  // tokens [token, token + n); d <= 1024, or 256 on small GPUs
  Range heads;                  // of KV heads, those to hash
  DType dtype;                  // f32 or bf16
};
/// Codes of keys relative to a center: those of sign_project and hash_codes.
/// numerics the signs of f32 multiply-adds over d in order, which are the CPU's (but its scalar
///          body's, which rounds twice) from the same keys and centers, bit for bit: sums of
///          bf16 parts on tensor cores decide where they are further from 0 than both can be
///          wrong, and the others, about one in 600 of 128 dimensions, are multiplied and added in
///          order. Norms are in the order of kv::norm_of, and so are bits of it, too
/// cost     6 d code_bits flops a key and table; the projections come from L2 for every 64 keys
/// errors   none (preconditions checked by the caller)
void hash_keys_cuda(const HashKeysParams&, Stream);

/// Tables of one block of tokens: offsets [tables, 2^code_bits + 1], then ids [tables, capacity],
/// those of KV head h at h * head_stride.
struct HashBlocks {
  uint16_t* at;
  int64_t head_stride;
  int capacity, tables, code_bits;
};

struct HashAppendCudaParams {
  HashBlocks block;
  KeyHashes codes;  // of the new tokens, of `heads`
  int n_old, n;
  Range heads;  // of KV heads, those that get tokens
};
/// Adds tokens n_old .. n_old + n - 1 to all tables of a block; ids of a bucket are in any order.
/// With n_old = 0 codes may lie where the ids will.
/// cost     a block a table, which reads the codes twice for every 4,096 buckets. With n_old = 0
///          ids are put in order in shared memory, otherwise old ones are moved and new ones
///          written where they belong
/// errors   none (preconditions checked by the caller)
void hash_append_cuda(const HashAppendCudaParams&, Stream);

struct HashQueriesParams {
  uint16_t* codes;       // [lists, tables] out
  float* queries;        // [lists, 2] out: |q|, q.center
  const void* q;         // [rows of the step, n_heads, d] of dtype
  const float* centers;  // of slot s and KV head h at s * center_stride + h * d
  int64_t center_stride;
  HashRule rule;
  ChoosingRows choosing;
  int n_heads, n_kv_heads, d;
  DType dtype;  // f32 or bf16
};
/// Codes of queries. Lists of rows without a sequence stay as they are.
/// numerics f32 multiply-adds over d in order, as hash_keys_cuda
/// cost     a block a list, which reads the projections from L2
/// errors   none (preconditions checked by the caller)
void hash_queries_cuda(const HashQueriesParams&, Stream);

struct CollideParams {
  int32_t* ids;    // out: list i begins at i * id_stride: sinks, then colliding tokens, ascending
  float* norms;    // out, as ids: |k - center|; -1 of sinks
  int32_t* count;  // out [lists]; 0 where nothing is indexed
  int64_t id_stride;
  uint16_t* hits;           // scratch [lists, max_blocks, capacity]
  int32_t* n_hits;          // scratch [lists, max_blocks]
  const uint16_t* codes;    // [lists, tables] of the queries
  const HashBlocks blocks;  // of block id b at b * block_stride
  int64_t block_stride;
  const float*
      key_norms;  // of block b, KV head h and token i at b * norm_block_stride + h * capacity + i
  int64_t norm_block_stride;
  const int32_t* ends;   // [slots] indexed tokens are [begin, ends[slot])
  const int32_t* table;  // [slots, max_blocks] block ids
  ChoosingRows choosing;
  int begin, max_blocks, min_hits;
  int n_heads, n_kv_heads;
};
/// The indexed tokens that share a list's bucket in at least min_hits tables, after the sinks [0,
/// begin).
/// numerics exact: the tokens of hash_probe from the same codes
/// cost     a block for every list and block of tokens: its query's buckets, and a pass over
///          counters in shared memory, 2 bytes a token
/// errors   none (preconditions checked by the caller)
void collide_cuda(const CollideParams&, Stream);

}  // namespace tandem
