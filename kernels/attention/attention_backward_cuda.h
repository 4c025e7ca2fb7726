#pragma once
#include "kernels/attention/attention_backward.h"

namespace tandem {

/// The host's knowledge of a call whose lengths lie in device memory: upper bounds that size the
/// grid.
struct AttentionBackwardLaunch {
  int n_rows;  // of the batch, at least row_begin[n_seqs]; q, dout, out and lse have as many
  int max_rows_a_seq;  // of one sequence
  void* workspace;  // attention_backward_cuda_workspace_bytes of n_rows or more, 256-byte aligned
};

/// Bytes of workspace of any call of up to max_rows rows. Arithmetic alone, compiled in every
/// build: a memory plan needs no GPU.
size_t attention_backward_cuda_workspace_bytes(int max_rows, int n_heads, int n_kv_heads,
                                               int head_dim, DType act);

namespace portable {
/// The backward pass of attention on a GPU: the contract of attention_backward.h with every pointer
/// in device memory, for even d <= 256. What the workspace holds before does not matter.
/// numerics f32 as there. bf16: shares and their gradients are rounded to bf16 for the products
///          that follow, sums are f32. No atomics: equal bits on every run, and a document's bits
///          depend on nothing else
/// cost     14 d flops a visible (query, key) pair, 4 d more than the least: dq is summed apart
///          from dk and dv, which computes the scores and dout v twice
void attention_backward_cuda(const AttentionBackwardParams&, const AttentionBackwardLaunch&,
                             Stream);
}  // namespace portable
namespace hopper {
/// The same, with bf16 of d 64, 128 and 256 and 16-byte aligned addresses on Hopper's own matrix
/// and copy engines.
/// errors   kind device: the driver cannot describe the tensors to the copy engine
void attention_backward_cuda(const AttentionBackwardParams&, const AttentionBackwardLaunch&,
                             Stream);
}  // namespace hopper

}  // namespace tandem
