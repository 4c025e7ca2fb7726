#pragma once
// Chunks of keys by their means (chunks.h) for all KV heads, on a GPU, and the choice of the best:
// contract. Pointers lie in device memory.
#include "kernels/selection/chunks.h"

namespace tandem {

/// Means of a sequence's chunks, in blocks of `block_chunks` chunks that sequences may share: chunk
/// i of layer l and KV head h lies in block blocks[i / block_chunks], whose means begin at block *
/// block_stride + l * layer_stride + h * head_stride elements, [block_chunks, d] of dtype.
struct ChunkBlocks {
  void* means;
  const int32_t* blocks;  // of the sequence
  int64_t block_stride, layer_stride, head_stride;
  int block_chunks;
};

struct ChunkMeansCudaParams {
  ChunkBlocks to;        // out, layer 0
  const void* k_pool;    // [n_pages, n_kv_heads, 64, d] of dtype
  const int32_t* pages;  // of the sequence
  int first, n, chunk;   // chunks [first, first + n) of `chunk` tokens, which divides 64
  int n_kv_heads, d;
  DType dtype;  // f32 or bf16
};
/// numerics those of chunk_means: the same bits
/// cost     reads the keys once
/// errors   none (preconditions checked by the caller)
void chunk_means_cuda(const ChunkMeansCudaParams&, Stream);

/// What heads of a KV head make of their products with a mean.
enum class ChunkGroup : uint8_t { sum, max };

struct ChunkScoresCudaParams {
  float* scores;  // out: of layer l, KV head h and chunk i at (l * n_kv_heads + h) * score_stride +
                  // i
  int64_t score_stride;
  // Queries of the sequence: that of token t under layer m of the model at m * q_layer_stride + t %
  // capacity * n_heads * d elements, [n_heads, d] of dtype.
  const void* q;
  int64_t q_layer_stride;
  int capacity, first_query, n_queries;
  const int32_t* layers;  // [n_layers] of the model
  ChunkBlocks from;
  int n;  // chunks
  int n_layers, n_heads, n_kv_heads, d;
  DType dtype;  // f32 or bf16
  ChunkGroup group;
};
/// Products of each mean with the sum of the queries, of all heads of the KV head together, or the
/// largest of its heads'.
/// numerics as chunk_scores; sums of queries in f32, tokens before heads
/// cost     reads the means once
/// errors   none (preconditions checked by the caller)
void chunk_scores_cuda(const ChunkScoresCudaParams&, Stream);

struct ChooseChunksParams {
  int32_t* ids;         // out: list i begins at i * id_stride
  const float* scores;  // list i begins at i * score_stride; no NaN
  int32_t* scratch;     // [n_lists, n_chosen]
  int64_t id_stride, score_stride;
  int n_lists, n, n_chosen;  // 1 <= n_chosen <= n
};
/// Chunk 0, then the chunks of the largest scores among the others, the best first; of equal ones
/// the lowest, first.
/// cost     a block a list, which reads its scores four times; n_chosen^2 comparisons
/// errors   none (preconditions checked by the caller)
void choose_chunks_cuda(const ChooseChunksParams&, Stream);

}  // namespace tandem
