#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ops/step_arrays.h"

namespace tandem::kv {

/// Tokens of one page; kernels are written for it (kernels/attention/attention.h).
inline constexpr int kPageTokens = 64;

/// Rows of a tree, at most.
inline constexpr int kMaxTreeRows = 1024;

/// New rows of one sequence in a step.
struct SeqRows {
  int slot = 0;             // sequence of the cache
  int n_rows = 0;           // may be 0
  bool last_chunk = false;  // of a prefill: the prompt ends with these rows
};

/// Tree of new rows for one sequence: row i hangs under row `parent[i]` < i, or under the committed
/// text when parent[i] is -1.
struct Tree {
  std::span<const int> parent;  // [n_rows]
};

enum class Phase : uint8_t {
  prefill,  // dense and exact; policies learn
  extend,   // the policy selects: decode, verify, sparse questions
};

/// One forward pass over a ragged batch, as attention sees it. See README.md beside this file.
struct Step {
  Phase phase = Phase::extend;
  int policy = 0;                    // whose select runs in phase extend
  int level = 0;                     // of a tree that goes through the model level by level
  int n_seqs = 0;                    // B
  int n_rows = 0;                    // R
  std::vector<int32_t> slot;         // [B]
  std::vector<int32_t> row_begin;    // [B + 1]
  std::vector<int32_t> base;         // [B] committed tokens before the step
  std::vector<int32_t> tentative;    // [B] rows of the levels before; empty in the first
  std::vector<uint8_t> last_chunk;   // [B] a prompt ends with this step
  std::vector<int32_t> pos;          // [R] RoPE position
  std::vector<int32_t> row_page;     // [R] page that takes the row's K and V
  std::vector<int32_t> row_in_page;  // [R] token slot inside it
  int mask_words = 0;                // 0 for chains
  std::vector<uint64_t> tree_mask;   // [R, mask_words]

  bool is_tree() const { return mask_words > 0; }
  int rows_of(int b) const {
    return row_begin[static_cast<size_t>(b) + 1] - row_begin[static_cast<size_t>(b)];
  }
  int tentative_of(int b) const {
    return tentative.empty() ? 0 : tentative[static_cast<size_t>(b)];
  }
  /// The arrays above, for kernels on the CPU; valid while the step is neither changed nor moved.
  /// Page tables are the cache's.
  ops::StepArrays arrays() const;
};

/// Makes a tree of the last sequence's rows, which begin at `first_row`: their positions and masks.
void add_tree(Step& step, int first_row, const Tree& tree);

/// Makes the rows of the step's sequence b those of another place: behind `base` committed tokens
/// of `slot`, whose tokens are in `pages`.
void move_rows(Step& step, int b, int slot, int base, std::span<const int32_t> pages);

/// Divides a step's rows: level l has those of each sequence from `level_ends[b][l - 1]` (or 0) to
/// `level_ends[b][l]`.
std::vector<Step> split_levels(const Step& whole, std::span<const std::vector<int>> level_ends);

}  // namespace tandem::kv
