#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"
#include "kv/page_tables.h"
#include "kv/quantized/quantized_keys.h"
#include "kv/step.h"
#include "tensor/arena.h"

namespace tandem::kv {

/// Attention of an extend step on the CPU over keys in codes. A key is read once for up to 16
/// queries of its KV head.
class QuantizedAttention {
 public:
  static constexpr int kQueries = 16;  // most of a block
  /// bounds   bounds of the steps; threads are those of the calling thread
  static void plan(const AttentionBounds& bounds, MemoryPlan& plan);
  QuantizedAttention(const AttentionBounds& bounds, const QuantizedKeys& keys, Arena& arena);

  struct Call {
    int layer;
    const Step& step;          // its near_begin are the marks
    const PageTables& tables;  // page tables of the codes
    Tensor q;                  // [R, Hq, d]
    float scale;               // multiplies scores
    float* o;                  // [R, Hq, d]
    float* lse;                // [R, Hq] natural log; of rows without coded keys -inf
  };
  /// numerics a row's bits do not depend on other rows, the batch and the threads
  void attend(const Call& call);

 private:
  /// Up to kQueries queries of one KV head and sequence: row by row, all heads of the group.
  struct Block {
    int seq, kv_head, first, n;  // first: of the sequence's queries
    int first_state, n_states;   // states of its splits
  };
  struct BlockQueries {
    float* q;           // [kQueries, d]
    int16_t* numbers;   // [kQueries, d]
    CodedGains* gains;  // [kQueries]
  };
  struct Task {
    int block, split;
  };
  BlockQueries queries_of(int block) const;
  /// Row and head of a block's query in q and o.
  size_t place(const Step& step, const Block& b, int i) const;
  /// Attends the blocks, and forgets them.
  void run(const Call& call);
  /// Joins the states of a query's splits, rotated; returns the lse.
  float merge(const Block& b, int query, float* o) const;

  AttentionBounds bounds_;
  const QuantizedKeys& keys_;
  std::byte* queries_;  // [blocks], each of block_bytes
  float* o_;            // [states, kQueries, d] of splits
  float* lse_;          // [states, kQueries]
  std::byte* scratch_;  // [threads]
  std::vector<Block> blocks_;
  std::vector<Task> tasks_;
};

}  // namespace tandem::kv
