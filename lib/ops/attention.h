#pragma once
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/mean_lse.h"
#include "ops/step_arrays.h"

namespace tandem::ops {

/// One attention over the paged store: a ragged batch of rows against the keys that a rule selects.
/// kernels/attention/attention.h defines arrays and rule exactly.
struct AttentionArgs {
  Tensor out;            // [R, Hq, d] of q's dtype or f32
  float* lse = nullptr;  // [R, Hq] natural log; may be null
  Tensor q;              // [R, Hq, d]
  Tensor k, v;           // pools of one layer [pages, Hkv, 64, d]
  StepArrays step;
  int32_t key_lo = 0, key_hi = 0, sinks = 0, window = 0;
  const int32_t* seq_key_lo = nullptr;  // [B]
  KeyLists lists = {};                  // on a GPU, of steps that takes_lists
  KeyScores scores = {};                // of steps that leave_scores, without window and bounds
  float scale = 1.0f;
  // True if all that this call reads, except q, pos, tree_mask and the step's own rows, was in
  // memory when the previous call on this workspace was enqueued: a GPU may then start to read
  // before the kernels in between have finished.
  bool keys_settled = false;
};

/// Bytes of workspace for any call within these bounds, on the CPU with its threads as they are.
/// errors   kind device: attention on a GPU does not take head_dim
size_t attention_workspace_bytes(Device device, const AttentionBounds& bounds);

/// A run's workspace, in memory that is zero before its first use. The counters keep their zeros
/// from call to call; where they lie follows from the bounds, not from the call.
struct AttentionWorkspace {
  void* counters = nullptr;  // on a GPU
  void* memory = nullptr;
  int tree_rows = 0;  // on a GPU: steps of trees up to which keys, not rows, are divided
  int list_rows = 0;  // the same where they have lists; 0: none has
};
AttentionWorkspace attention_workspace(Device device, const AttentionBounds& bounds, void* memory);

/// Rows of a sequence that may have lists in any step.
inline constexpr int kMaxListRows = 16;
/// Whether an attention over this step may have lists: steps of at most kMaxListRows rows a
/// sequence, and trees within the bounds' max_tree_rows, where the bounds named lists.
bool takes_lists(const StepArrays& step, const AttentionWorkspace& workspace);

/// Whether an attention over this step may leave scores of keys; where lists are taken, it can.
bool leaves_scores(const StepArrays& step);

/// Means of rows' lse, on either device.
void mean_lse(const MeanLseParams& params, Stream stream);

/// numerics on the CPU f32 results of a row are bit-identical for any batching, chunking and thread
///          count. On a GPU a row's bits depend on its own sequence and, where few rows meet many
///          keys, on the number of sequences of the step
/// errors   none (shapes are checked by TANDEM_CHECK); device
void attention(const AttentionArgs& args, const AttentionWorkspace& workspace, Stream stream = {});

/// Merges `n` <= kMaxMergeParts partial results of disjoint key sets.
/// shapes   out [R, Hq, d]; o [n, R, Hq, d] f32; lse [n, R, Hq] natural log; merged_lse [R, Hq] or
///          null
void merge_states(const Tensor& out, const float* o, const float* lse, int n, Stream stream = {},
                  float* merged_lse = nullptr);

}  // namespace tandem::ops
