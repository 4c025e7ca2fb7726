#pragma once
// Contract of draw_children. No STL: included by sources compiled with per-ISA flags.
#include "kernels/sample/sample.h"

namespace tandem {

struct DrawChildrenParams {
  int32_t* tokens;      // [child_begin[n_rows]], kInvalidToken for those of a meaningless row
  const float* logits;  // [n_rows, V]
  const int32_t* child_begin;  // [n_rows + 1], children of row r: tokens[child_begin[r] ..
                               // child_begin[r + 1]), at most V
  const int32_t* sequence;     // [n_rows], names the random numbers, with the two below
  const int32_t* position;     // [n_rows] tokens committed when the round begins, its root included
  const int32_t* node;         // [n_rows] below 2^24
  uint64_t seed;
  int n_rows, vocab;
  float temperature;  // >= 0
  void* workspace;    // draw_children_workspace_bytes(V), 64-byte aligned, one per concurrent call
};

/// Children of tree nodes: tokens drawn without replacement from softmax(logits / temperature), in
/// the order in which they are drawn; at temperature 0 the largest logits, ties: the lower id
/// first. Once no token of positive weight is left, the rest are drawn uniformly, masked ones too.
/// The weights are those of sample.h, and the verifier builds them again from these very logits.
/// An exponential race: token x has the key E(x) / weight(x), E exponential; the smallest win.
/// numerics E has 52 random bits and is good to 1e-15; ties, of chance 2^-35: the lower id wins.
///          A pure function of row, names and seed: equal on every ISA and thread count
/// cost     reads n_rows * V * 4 bytes twice, the second time from cache; a Philox block a 4 tokens
/// errors   none (preconditions checked by ops; a meaningless row is a result)
/// source   Sequoia, section 4.1; Vieira, "Gumbel-max trick and weighted reservoir sampling"
using DrawChildrenFn = void(const DrawChildrenParams&, Range rows);
DrawChildrenFn draw_children_ref, draw_children_scalar, draw_children_avx2, draw_children_avx512;

size_t draw_children_workspace_bytes(int vocab);

}  // namespace tandem
