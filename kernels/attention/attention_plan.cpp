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
// Parts a thread of blocks that are divided. Threads that share memory with others read at unequal
// rates, and all wait for the last: half a part on average. A part costs its first page, which
// nothing fetched ahead.
constexpr int kPartsPerThread = 24;
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

/// Queries of a sequence that a task takes, and the splits that they see.
struct QueryBlock {
  int query, n;
  SplitRange range;
  int n_splits() const { return range.end - range.begin; }
};

/// The blocks of one sequence, the last rows' first.
struct SequenceBlocks {
  const AttentionParams& p;
  Sequence seq;
  int block, n_queries;

  SequenceBlocks(const AttentionParams& params, int s, int block_queries)
      : p(params),
        seq(sequence_of(params, s)),
        block(block_queries),
        n_queries(seq.n_rows * (params.n_heads / params.n_kv_heads)) {}
  int size() const { return (n_queries + block - 1) / block; }
  QueryBlock operator[](int i) const {
    const int g = p.n_heads / p.n_kv_heads, query = (size() - 1 - i) * block;
    const int n = std::min(block, n_queries - query);
    return {query, n, visible_splits(p, seq, query / g, (query + n - 1) / g)};
  }
};

struct Planner {
  const AttentionParams& p;
  AttentionPlan& plan;
  int64_t splits_a_task;  // narrow blocks with more splits than this are divided
  int splits_a_part;      // into parts of this many
  size_t floats = 0;

  /// Whether n_blocks like b may be divided. Blocks are wide only where there are enough of them
  /// for all threads.
  bool divides(const QueryBlock& b, int n_blocks) const {
    const size_t needed = static_cast<size_t>(b.n_splits()) * state_floats(p.head_dim);
    return b.n <= kLanes && b.n_splits() > splits_a_task &&
           floats + static_cast<size_t>(n_blocks) * needed <= kMaxPartialFloats;
  }

  void add_whole(int s, int h, const QueryBlock& b, bool follows) {
    plan.tasks[plan.n_tasks++] = {s, h, b.query, b.n, b.range.begin, b.range.end, -1, follows};
  }
  /// A divided block's states; the offset of the first.
  int64_t add_merge(int s, int h, const QueryBlock& b) {
    const auto first = static_cast<int64_t>(floats);
    plan.merges[plan.n_merges++] = {s, h, b.query, b.n, b.range.begin, b.range.end, first, false};
    floats += static_cast<size_t>(b.n_splits()) * state_floats(p.head_dim);
    return first;
  }
  /// The part of a divided block from split `at` on.
  void add_part(int s, int h, const QueryBlock& b, int at, int64_t first, bool follows) {
    const int end = std::min(at + splits_a_part, b.range.end);
    plan.tasks[plan.n_tasks++] = {
        s,
        h,
        b.query,
        b.n,
        at,
        end,
        first + (at - b.range.begin) * static_cast<int64_t>(state_floats(p.head_dim)),
        follows};
  }

  void add(int s, const SequenceBlocks& blocks) {
    for (int i = 0; i < blocks.size(); ++i) {
      const QueryBlock b = blocks[i];
      for (int h = 0; h < p.n_kv_heads; ++h) {
        if (!divides(b, 1)) {
          add_whole(s, h, b, false);
          continue;
        }
        const int64_t first = add_merge(s, h, b);
        for (int at = b.range.begin; at < b.range.end; at += splits_a_part)
          add_part(s, h, b, at, first, false);
      }
    }
  }

  /// As add, the tasks of the same keys one after the other: all blocks are divided, or none is.
  /// All see the committed keys, so that only the ends of their ranges differ, and the first
  /// block's is the largest.
  void add_scored(int s, const SequenceBlocks& blocks) {
    const int n = blocks.size();
    if (n == 0) return;
    const QueryBlock longest = blocks[0], shortest = blocks[n - 1];
    const bool divided = std::max(longest.n, shortest.n) <= kLanes &&
                         shortest.n_splits() > splits_a_task && divides(longest, n * p.n_kv_heads);
    for (int h = 0; h < p.n_kv_heads; ++h) {
      for (int i = 0; i < n && !divided; ++i) add_whole(s, h, blocks[i], i > 0);
      if (!divided) continue;
      const auto first = static_cast<int64_t>(floats);
      for (int i = 0; i < n; ++i) (void)add_merge(s, h, blocks[i]);
      for (int at = longest.range.begin; at < longest.range.end; at += splits_a_part) {
        int64_t states = first;
        for (int i = 0; i < n; ++i) {
          const QueryBlock b = blocks[i];
          if (at < b.range.end) add_part(s, h, b, at, states, i > 0);
          states += b.n_splits() * static_cast<int64_t>(state_floats(p.head_dim));
        }
      }
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

  const int block = query_block(p, kernel.query_block, threads);
  int64_t total = 0;
  for (int s = 0; s < p.n_seqs; ++s) {
    const SequenceBlocks blocks(p, s, block);
    for (int i = 0; i < blocks.size(); ++i) total += int64_t{blocks[i].n_splits()} * p.n_kv_heads;
  }
  const auto share = [&](int pieces) {
    return std::max<int64_t>(1, total / (int64_t{pieces} * threads));
  };
  Planner planner{p, plan, share(kTasksPerThread), static_cast<int>(share(kPartsPerThread))};
  for (int s = 0; s < p.n_seqs; ++s) {
    const SequenceBlocks blocks(p, s, block);
    if (p.scores.at == nullptr)
      planner.add(s, blocks);
    else
      planner.add_scored(s, blocks);
  }
  return plan;
}

}  // namespace tandem
