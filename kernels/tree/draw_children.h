#pragma once
// Contract of draw_children. No STL: included by sources compiled with per-ISA flags.
#include "kernels/sample/sample.h"
#include "kernels/tree/round_numbers.h"

namespace tandem {

/// A tree node whose children are drawn from the row of logits of the same index.
struct ParentRow {
  int32_t seq;          // its sequence in the batch
  int32_t node;         // below 2^16
  int32_t first_child;  // children are tokens[first_child] .. tokens[first_child + n_children - 1]
  int32_t n_children;   // at most V
};

/// Pointers into memory of the device that draws.
struct DrawChildrenParams {
  int32_t* tokens;           // kInvalidToken for children of a meaningless row
  const float* logits;       // [n_rows, V]
  const ParentRow* parents;  // [n_rows], 16-byte aligned
  RoundNumbers numbers;      // by sequence of the batch
  int n_rows, vocab;
  KeepRule rule;

  // Not read without a repetition penalty. It bears on the tokens of the sequence and on those of
  // the node's path, from the root's child to the node itself.
  const int32_t* seen = nullptr;        // of the sequences, repeats allowed; null: none
  const int32_t* seen_begin = nullptr;  // [B + 1]
  const int32_t* parent = nullptr;      // of each node, in its tree, -1 for a root; null: no paths.
                                        // Of node i of sequence b it is parent[node_begin[b] + i],
                                        // and its token tokens[node_begin[b] + i]
  const int32_t* node_begin = nullptr;  // [B]

  void* workspace;  // on the CPU draw_children_workspace_bytes(V), 64-byte aligned, one per
                    // concurrent call; on a GPU row_memory_bytes(V, n_rows, 1), one per stream,
                    // null where that is 0
  // On the CPU, but for the reference, for verification: sums of rows with children that the rule
  // leaves as they are, total 0 of the others; null: not wanted.
  RowSum* sums = nullptr;  // [n_rows]
};

/// Children of tree nodes: tokens drawn without replacement, in the order in which they are drawn.
/// First those that the rule keeps of the row, as `sample` does, each by its weight; once none of
/// positive weight is left, the rest, masked ones too, by the weight that they would have without
/// top-k, top-p and min-p, or 1 if that is more. At temperature 0 the largest penalised logits,
/// ties: the lower id first. The verifier makes the same weights again, from these very logits.
/// An exponential race: token x has the key E(x) / weight(x), E exponential; the smallest win.
/// numerics E has 52 random bits and is good to 1e-15; ties, of chance 2^-35: the lower id wins.
///          A pure function of row, names and seed: equal on every ISA and thread count
/// cost     reads n_rows * V * 4 bytes twice, the second time from cache; a Philox block a 4 tokens.
///          With top-k, top-p or min-p what `sample` costs, and two Philox blocks a kept token
/// errors   none (preconditions checked by ops; a meaningless row is a result)
/// source   Sequoia, section 4.1; Vieira, "Gumbel-max trick and weighted reservoir sampling"
using DrawChildrenFn = void(const DrawChildrenParams&, Range rows);
DrawChildrenFn draw_children_ref, draw_children_scalar, draw_children_avx2, draw_children_avx512;

size_t draw_children_workspace_bytes(int vocab);

/// The same on a GPU: the very tokens that the CPU draws.
/// layout   rows contiguous; those that are multiples of 16 bytes are read faster
/// cost     reads n_rows * V * 4 bytes once; the rest happens in shared memory. Hundreds of a row's
///          children, and rows whose weights gather in few threads' tokens, are drawn one by one
/// errors   kind internal above kMaxVocabCuda
using DrawChildrenCudaFn = void(const DrawChildrenParams&, Stream);
namespace portable {
DrawChildrenCudaFn draw_children_cuda;
}
namespace hopper {
DrawChildrenCudaFn draw_children_cuda;
}

}  // namespace tandem
