#include <algorithm>
#include <new>

#include "kernels/attention/attention.h"
#include "kernels/attention/scratch.h"
#include "kernels/attention/visibility.h"

namespace tandem {
namespace {

constexpr int kLanes = 16;  // widest vector: states of divided blocks are padded to it
// Tasks a thread that even out unequal lengths.
constexpr int kTasksPerThread = 4;
// Divided blocks together hold at most this many floats; beyond that blocks stay whole, which costs
// balance and never changes a result.
constexpr size_t kMaxPartialFloats = size_t{8} << 20;

size_t aligned(size_t bytes) { return (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign; }

size_t max_blocks(const AttentionBounds& b) {
  const auto queries =
      static_cast<size_t>(b.max_rows) * static_cast<size_t>(b.n_heads / b.n_kv_heads);
  return (static_cast<size_t>(b.max_seqs) + queries / kLanes) * static_cast<size_t>(b.n_kv_heads);
}

/// Floats of one split's state of a block that may be divided.
size_t state_floats(int head_dim) {
  return static_cast<size_t>(kLanes) * static_cast<size_t>(head_dim + 2);
}

/// What the divided blocks of any call within the bounds need.
struct Divided {
  size_t blocks, splits;

  /// A divided block has more than 1 / (kTasksPerThread * threads) of all splits, so there are
  /// fewer than kTasksPerThread * threads of them.
  explicit Divided(const AttentionBounds& b)
      : blocks(std::min(max_blocks(b), static_cast<size_t>(kTasksPerThread * b.threads - 1))),
        splits(
            std::min(blocks * static_cast<size_t>((b.max_tokens + kSplitTokens - 1) / kSplitTokens),
                     kMaxPartialFloats / state_floats(b.head_dim))) {}
};

/// Splits [begin, end) that hold every key the rows [row, row_last] may see.
struct SplitRange {
  int begin, end;
};
SplitRange visible_splits(const AttentionParams& p, const Sequence& s, int row, int row_last) {
  const int n_slots = p.tree_mask != nullptr ? s.end : s.base + row_last + 1;
  int page = 0, end = (n_slots + kPageTokens - 1) / kPageTokens;
  while (page < end && page_seen(p, s, row, row_last, page) == Seen::none) ++page;
  while (end > page && page_seen(p, s, row, row_last, end - 1) == Seen::none) --end;
  constexpr int kPages = kSplitTokens / kPageTokens;
  return {page / kPages, (end + kPages - 1) / kPages};
}

/// Queries of a task: as many as the kernel takes, fewer where that would leave threads without
/// one.
int query_block(const AttentionParams& p, int most, int threads) {
  const int g = p.n_heads / p.n_kv_heads;
  for (int block = most; block > kLanes; block /= 2) {
    int64_t tasks = 0;
    for (int s = 0; s < p.n_seqs; ++s)
      tasks += ((p.row_begin[s + 1] - p.row_begin[s]) * g + block - 1) / block * p.n_kv_heads;
    if (tasks >= kTasksPerThread * threads) return block;
  }
  return kLanes;
}

struct Planner {
  const AttentionParams& p;
  AttentionPlan& plan;
  int64_t splits_a_task;  // narrow blocks with more splits than this are divided
  size_t floats = 0;

  void add_block(int s, int query, int n, SplitRange range) {
    const int n_splits = range.end - range.begin;
    const size_t state = state_floats(p.head_dim);
    const size_t needed = static_cast<size_t>(n_splits) * state;
    for (int h = 0; h < p.n_kv_heads; ++h) {
      // Blocks are wide only where there are enough of them for all threads.
      if (n > kLanes || n_splits <= splits_a_task || floats + needed > kMaxPartialFloats) {
        plan.tasks[plan.n_tasks++] = {s, h, query, n, range.begin, range.end, -1};
        continue;
      }
      const auto first = static_cast<int64_t>(floats);
      plan.merges[plan.n_merges++] = {s, h, query, n, range.begin, range.end, first};
      for (int at = range.begin; at < range.end; at += static_cast<int>(splits_a_task)) {
        const int end = std::min<int>(at + static_cast<int>(splits_a_task), range.end);
        plan.tasks[plan.n_tasks++] = {
            s, h, query, n, at, end, first + (at - range.begin) * static_cast<int64_t>(state)};
      }
      floats += needed;
    }
  }
};

}  // namespace

size_t attention_scratch_bytes(int head_dim) {
  Scratch scratch;
  return lay_out(scratch, nullptr, head_dim);
}

size_t attention_cpu_workspace_bytes(const AttentionBounds& b) {
  const Divided divided(b);
  return static_cast<size_t>(b.threads) * attention_scratch_bytes(b.head_dim) +
         aligned(divided.splits * state_floats(b.head_dim) * sizeof(float)) +
         aligned(divided.blocks * sizeof(AttentionTask)) +
         aligned((max_blocks(b) + divided.splits) * sizeof(AttentionTask));
}

AttentionPlan attention_plan(const AttentionParams& p, const AttentionKernel& kernel, int threads,
                             void* workspace) {
  // The call is its own bound; the workspace was made for one at least as wide.
  int tokens = 0;
  for (int s = 0; s < p.n_seqs; ++s) tokens = std::max(tokens, sequence_of(p, s).end);
  const Divided divided({.max_seqs = p.n_seqs,
                         .max_rows = p.row_begin[p.n_seqs],
                         .max_tokens = tokens,
                         .n_heads = p.n_heads,
                         .n_kv_heads = p.n_kv_heads,
                         .head_dim = p.head_dim,
                         .threads = threads});
  char* at = static_cast<char*>(workspace) +
             static_cast<size_t>(threads) * attention_scratch_bytes(p.head_dim);
  AttentionPlan plan{};
  plan.partials = reinterpret_cast<float*>(at);
  at += aligned(divided.splits * state_floats(p.head_dim) * sizeof(float));
  plan.merges = reinterpret_cast<AttentionTask*>(at);
  at += aligned(divided.blocks * sizeof(AttentionTask));
  plan.tasks = reinterpret_cast<AttentionTask*>(at);

  const int g = p.n_heads / p.n_kv_heads, block = query_block(p, kernel.query_block, threads);
  const auto for_blocks = [&](auto&& visit) {
    for (int s = 0; s < p.n_seqs; ++s) {
      const Sequence seq = sequence_of(p, s);
      const int n_queries = seq.n_rows * g;
      for (int query = (n_queries - 1) / block * block; n_queries > 0 && query >= 0;
           query -= block) {
        const int n = std::min(block, n_queries - query);
        visit(s, query, n, visible_splits(p, seq, query / g, (query + n - 1) / g));
      }
    }
  };
  int64_t total = 0;
  for_blocks(
      [&](int, int, int, SplitRange r) { total += int64_t{r.end - r.begin} * p.n_kv_heads; });
  const int64_t share = total / (int64_t{kTasksPerThread} * threads);
  Planner planner{p, plan, std::max<int64_t>(1, share)};
  for_blocks([&](int s, int query, int n, SplitRange r) { planner.add_block(s, query, n, r); });
  return plan;
}

}  // namespace tandem
