#pragma once
#include "kernels/tree/draw_children.h"

namespace tandem {

/// A tree node whose children are drawn from the row of logits of the same index.
struct ParentRow {
  int32_t seq;   // its sequence, an index into the arrays below
  int32_t node;  // below 2^24
  int32_t
      first_child;  // its children are tokens[first_child] .. tokens[first_child + n_children - 1]
  int32_t n_children;  // at most V
};

/// Pointers into device memory. A recorded launch may be repeated with other positions
/// and another seed.
struct DrawChildrenCudaParams {
  int32_t* tokens;           // kInvalidToken for children of a meaningless row
  const float* logits;       // [n_rows, V]
  const ParentRow* parents;  // [n_rows], 16-byte aligned
  const int32_t* sequence;   // [B], names the random numbers, with node, seed and
  const int32_t* position;   // [B] tokens committed when the round begins, its root included
  const uint64_t* seed;      // [1]
  int n_rows, vocab;
  float temperature;  // >= 0
  void* workspace;    // row_memory_bytes(V, n_rows, 1), for this stream; null where that is 0
};

/// draw_children on a GPU: the contract of draw_children.h, and the very tokens that the CPU draws.
/// layout   rows contiguous; those that are multiples of 16 bytes are read faster
/// cost     reads n_rows * V * 4 bytes once; the rest happens in shared memory. Hundreds of a row's
///          children, and rows whose weights gather in few threads' tokens, are drawn one by one
/// errors   kind internal above kMaxVocabCuda
namespace portable {
void draw_children_cuda(const DrawChildrenCudaParams&, Stream);
}
namespace hopper {
void draw_children_cuda(const DrawChildrenCudaParams&, Stream);
}

}  // namespace tandem
