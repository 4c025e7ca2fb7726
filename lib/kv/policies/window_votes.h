#pragma once
#include "kv/policies/scratch.h"
#include "kv/policy.h"

namespace tandem::kv {

/// A thread's memory for the votes of a window of queries of one KV head, on the CPU.
struct WindowScratch {
  float *q, *lse, *kernel;
  float* votes;  // [max_tokens]

  /// window   tokens whose queries vote, at most
  WindowScratch(ScratchCutter& cutter, const Bounds& bounds, int window);
};

/// A window of a text's queries, and who of its keys they vote for.
struct VoteWindow {
  int slot, layer, kv_head;
  int first, end;  // tokens whose queries vote, those of the whole text to `end`
  float scale;
};

/// Sums the attention of the window's queries to each key into scratch.votes, for the heads of the
/// KV head together; kernels/gather/key_votes.h defines it. The log of each query's sum of weights,
/// [tokens, heads of the group], goes to scratch.lse.
void count_votes(const VoteWindow& window, const QueryRing& queries, const PagedStore& store,
                 const Geometry& geometry, const WindowScratch& scratch);

}  // namespace tandem::kv
