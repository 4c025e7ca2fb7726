#pragma once
#include "kernels/attention/attention.h"

namespace tandem {

/// The host's knowledge of a call when it captures it. The grid follows from this and the
/// parameters' n_seqs alone; everything else is read from device memory when the kernel runs.
struct AttentionLaunch {
  int max_rows_a_seq;
  int max_tokens;  // of one sequence, new rows included
  // All that the call reads but q, the new rows' K and V, pos and tree_mask was written ahead of
  // the last call on the stream (the layer before): reading may begin before the kernels in between
  // end.
  bool keys_settled = false;
  void* counters;   // zero before the first call; every call leaves them zero
  void* workspace;  // 256-byte aligned; holds nothing between calls
};

namespace portable {
/// Attention of few rows a sequence (decode, verify) on a GPU: the contract of attention.h with
/// pointers into device memory. In a tree, no row's position lies before its sequence's base.
/// layout   16-byte aligned q, out and pools of bf16, head_dim 64, 128 or 256, take the fast kernel
/// numerics bf16: as attention.h, p rounded to bf16. The keys of a sequence are divided by rules
///          that know its own length and the shape of the launch alone, and merged in their order:
///          the same bits on every run, for any content of the other sequences
/// cost     reads the pages that some row may see once for every 64 queries (row x head of a KV
///          group)
void attention_few_rows_cuda(const AttentionParams&, const AttentionLaunch&, Stream);
}  // namespace portable
namespace hopper {
/// This body uses Hopper's copy engine and, at 33 queries and more of head_dim 256, its matrix
/// engine. It gives the same bits.
/// errors   kind device: the driver refuses to describe the pools
void attention_few_rows_cuda(const AttentionParams&, const AttentionLaunch&, Stream);
}  // namespace hopper

/// Most parts that merge_states_cuda takes.
inline constexpr int kMaxMergeParts = 64;
/// merge_states on a GPU, rows [0, n_rows). The two arrays of pointers lie in host memory and point
/// to device memory; they are copied before the call returns.
void merge_states_cuda(const MergeStatesParams&, int n_rows, Stream);

}  // namespace tandem
