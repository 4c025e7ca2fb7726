#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/step.h"

namespace tandem::kv {

/// Numbers the sparse layers and KV heads within the blocks, or the slots, that a policy has data
/// for.
struct HeadGrid {
  int n_sparse = 0, n_kv_heads = 0;

  size_t cell(int block, int ordinal, int kv_head) const {
    const auto row =
        static_cast<size_t>(block) * static_cast<size_t>(n_sparse) + static_cast<size_t>(ordinal);
    return row * static_cast<size_t>(n_kv_heads) + static_cast<size_t>(kv_head);
  }
  /// Cells of n blocks.
  size_t cells(int n) const { return cell(n, 0, 0); }
};

/// Which tokens of each sequence a policy has in an index of its own, and in which blocks. Tokens
/// before begin() (sinks) and from end(slot) on (recent and generated ones) are read exactly; those
/// between are indexed, in blocks of capacity() tokens that forks share until one of them writes.
class TokenIndex {
 public:
  struct Spec {
    int max_seqs = 1;
    int max_prompts = 0;  // of them, those that write blocks of their own; 0 = all, forks too
    int max_tokens = 0;
    int64_t total_tokens = 0;
    int max_appended = 0;  // of one sequence after its prompt (kv/cache.h); 0 = any number
    int sinks = 4;
    int recent = 64;
    int unit = 1;           // tokens are indexed in multiples of it, a divisor of 64
    int least = 1;          // tokens that a sequence's index begins with, or more
    int max_block = 32768;  // tokens of a block
  };
  /// Recent tokens gather until there are this many more than `recent`; then all but `recent` of
  /// them are indexed at once.
  static constexpr int kRoll = 1024;
  /// Tokens that a fork of a prompt may add and still need no block: what waits at the prompt's end
  /// may be nearly a page already.
  static constexpr int kMaxForkTokens = kRoll - kPageTokens;

  explicit TokenIndex(const Spec& spec);

  int capacity() const { return capacity_; }
  int n_blocks() const { return n_blocks_; }
  /// Of one sequence, at most.
  int max_blocks() const { return max_blocks_; }
  int max_tokens() const { return spec_.max_tokens; }
  int begin() const { return spec_.sinks; }
  int end(int slot) const { return at(slot).end; }
  bool empty(int slot) const { return end(slot) <= begin(); }
  const std::vector<int>& blocks(int slot) const { return at(slot).blocks; }
  /// Tokens of the sequence that its i-th block holds.
  int block_tokens(int slot, int i) const;

  /// New tokens for one block.
  struct Piece {
    int block = 0;
    int copy_of = -1;  // first copy this block's contents; -1 = nothing to copy
    int offset = 0;    // tokens that the block holds already
    int token = 0;     // first new token of the sequence
    int n = 0;
  };
  /// The entries to be written for a slot whose text has `length` tokens.
  struct Work {
    int slot = 0, length = 0;
    std::vector<Piece> pieces = {};
    bool fresh = false;   // the slot had no index before
    Range ordinals = {};  // sparse layers that it is to be done for; the first come first
  };
  /// Where the index of a sequence of `length` tokens should end: all but the recent ones at the
  /// end of a `prompt`. Otherwise, and where a block would have to be copied first, tokens are
  /// added kRoll or more at a time, so that short forks share every block.
  int wanted_end(int slot, int length, bool prompt) const;
  /// Tokens of a text with which generated ones move into its index next.
  int next_roll(int slot) const { return end(slot) + spec_.recent + kRoll; }
  /// Tokens of a sequence that are in no index, sinks counted where there is none, at most.
  int most_outside() const {
    const int before_roll = std::max(spec_.least, kRoll);
    const int waiting = spec_.max_appended > 0
                            ? std::min(spec_.least + spec_.max_appended, before_roll)
                            : before_roll;
    return spec_.sinks + spec_.recent + waiting + spec_.unit;
  }
  /// Extends the index to `end` and says what must be written where.
  std::vector<Piece> extend(int slot, int end);

  /// Forgets what the index has from the token `end` on, a multiple of the unit.
  void cut(int slot, int end);
  void fork(int from, int to);
  void release(int slot);

 private:
  struct Slot {
    int end = 0;
    std::vector<int> blocks;
  };
  Slot& at(int slot) { return slots_[static_cast<size_t>(slot)]; }
  const Slot& at(int slot) const { return slots_[static_cast<size_t>(slot)]; }
  int allocate();
  void unref(int block);

  Spec spec_;
  int capacity_, max_blocks_, n_blocks_;
  std::vector<Slot> slots_;
  std::vector<int> refs_, free_;
};

}  // namespace tandem::kv
