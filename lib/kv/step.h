#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/page.h"
#include "kernels/page/catch_up.h"
#include "ops/step_arrays.h"
#include "tensor/outbox.h"

namespace tandem::kv {

/// Rows of a tree, at most, and drafted rows of a step that is measured, all sequences together.
inline constexpr int kMaxTreeRows = 1024, kMaxDraftedRows = 4096;

/// Page groups, at most (page_groups.h): models have layers without a window and with one.
inline constexpr int kMaxPageGroups = 2;

/// What a forward reads: which policy of the cache selects keys, and which FFN channels.
struct Reading {
  int keys = 0;
  int channels = 0;  // 0 = all; n: the n-th FFN policy of the engine (lib/ffn)
  bool operator==(const Reading&) const = default;
};

/// New rows of one sequence in a step.
struct SeqRows {
  int slot = 0;             // sequence of the cache
  int n_rows = 0;           // may be 0
  bool last_chunk = false;  // of a prefill: the prompt ends with these rows
};

/// Tree of new rows for one sequence: row i hangs under row `parent[i]` < i, or under the committed
/// tokens when parent[i] is -1.
struct Tree {
  std::span<const int> parent;  // [n_rows]

  /// Whether every row hangs under the row before it.
  bool is_chain() const {
    for (size_t i = 0; i < parent.size(); ++i)
      if (parent[i] != static_cast<int>(i) - 1) return false;
    return true;
  }
};

enum class Phase : uint8_t {
  prefill,  // dense and exact; policies learn
  extend,   // the policy of the reading selects: decode, verify, sparse questions
};

/// What a forward is asked to be.
struct StepSpec {
  Phase phase = Phase::extend;
  std::span<const SeqRows> rows;
  std::span<const Tree> trees = {};     // empty, or one a sequence; chains get no masks
  std::optional<Reading> reading = {};  // none: that of the sequences' only reader
  Outbox* outbox = nullptr;  // on a GPU, where the step's arrays go, for the caller to send; null:
                             // the cache sends them
  /// On a GPU, sequences that the arrays have room for, where more than there are: work that is
  /// recorded for as many serves the step. All sequences then have as many rows. See places_for.
  int places = 0;
  /// Steps may go through the model side by side (Transformer::forward_ids): the number of this
  /// one, and the rows of those before it.
  int micro_batch = 0;
  int rows_before = 0;
  /// Tokens that work under way may still add to each sequence before this step runs, at most; that
  /// work, or catch_up after it (kernels/page/catch_up.h), then moves the step's rows on.
  int ahead = 0;
  /// For its time alone: its rows are not kept, policies learn nothing of it, nothing is counted.
  bool probe = false;
};

/// One forward pass over a ragged batch, as attention sees it. See README.md beside this file.
struct Step {
  Phase phase = Phase::extend;
  Reading reading;
  int n_seqs = 0;                    // B
  int n_rows = 0;                    // R
  int places = 0;                    // sequences of `arrays`: those beyond B are without rows
  int ahead = 0;                     // StepSpec's
  int micro_batch = 0;               // StepSpec's
  int rows_before = 0;               // StepSpec's
  bool drafted = false;              // rows are those of trees or drafted chains
  bool probe = false;                // StepSpec's
  std::vector<int32_t> slot;         // [B]
  std::vector<int32_t> row_begin;    // [B + 1]
  std::vector<int32_t> base;         // [B] committed tokens before the step
  std::vector<int32_t> tentative;    // [B] rows of the levels before; empty in the first
  std::vector<uint8_t> last_chunk;   // [B] a prompt ends with this step
  std::vector<int32_t> pos;          // [R] RoPE position
  std::vector<int32_t> row_page;     // [R] page that takes the row's K and V
  std::vector<int32_t> row_in_page;  // [R] token slot inside it
  /// The rows under the pages of a further page group.
  struct GroupRows {
    std::vector<int32_t> row_page;  // [R]
    ops::StepArrays arrays = {};
  };
  std::vector<GroupRows> groups;
  // Where keys are in host memory, else empty:
  std::vector<int32_t> near_page;   // [R] row_page in near, or in prompt (hosted_keys.h)
  std::vector<int32_t> near_begin;  // [B] first token that ranges read there
  int mask_words = 0;               // 0 for chains
  std::vector<uint64_t> tree_mask;  // [R, mask_words]
  /// The arrays above and the page tables where kernels find them: the vectors on the CPU, a GPU's
  /// memory on one. The cache fills it.
  ops::StepArrays arrays;
  ops::StepArrays near;              // with the pages of near_page
  const int32_t* near_lo = nullptr;  // near_begin

  Step() = default;
  // The arrays of a copy would be those of the original.
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  Step(Step&&) = default;
  Step& operator=(Step&&) = default;

  bool is_tree() const { return mask_words > 0; }
  int rows_of(int b) const {
    return row_begin[static_cast<size_t>(b) + 1] - row_begin[static_cast<size_t>(b)];
  }
  /// Rows of `arrays`: those beyond R belong to no sequence.
  int padded_rows() const { return places > n_seqs ? places * rows_of(0) : n_rows; }
  int tentative_of(int b) const {
    return tentative.empty() ? 0 : tentative[static_cast<size_t>(b)];
  }
  /// Points `arrays` to the vectors above, all but the page tables.
  void point_to_host();
};

/// Sequences that work on n of them is recorded for: the next power of two, so that a batch that
/// shrinks needs few recordings; of many rows together, whose products cost as much as there are
/// rows, the next eighth of a power of two.
/// most     that there is room for, at least n
int places_for(int n, int rows_each, int most);

/// Makes a tree of the last sequence's rows, which begin at `first_row`: their positions and masks.
void add_tree(Step& step, int first_row, const Tree& tree);

/// A sequence's near keys, where there are any.
struct NearRows {
  std::span<const int32_t> pages = {};
  int begin = 0;  // first token that ranges read
};

/// Makes the rows of the step's sequence b those of another place: after `base` committed tokens
/// of `slot`, whose tokens are in `pages`, and in further page groups in `further`.
void move_rows(Step& step, int b, int slot, int base, std::span<const int32_t> pages,
               std::span<const std::span<const int32_t>> further, const NearRows& near);

/// The rows of a step that was laid out, of every sequence as many, for work that moves them on.
StepRows rows_of(const Step& step);

/// Divides a step's rows: level l has those of each sequence from `level_ends[b][l - 1]` (or 0) to
/// `level_ends[b][l]`.
std::vector<Step> split_levels(const Step& whole, std::span<const std::vector<int>> level_ends);

}  // namespace tandem::kv
