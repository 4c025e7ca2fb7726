#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::text {

/// One rule of byte-pair encoding: two neighbouring tokens become one.
struct Merge {
  int32_t left, right, result;
};

/// Buffers of BpeMerger::apply, kept between words.
struct BpeWorkspace {
  struct Symbol {
    int32_t id, previous, next;  // links are indices, -1 at the ends; id -1 once merged away
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // candidates: rank above position, in 32 bits each
};

/// Applies merge rules in order of rank, leftmost first, until none fits.
class BpeMerger {
 public:
  /// `merges` in order of rank; of two rules for one pair the later replaces the earlier.
  explicit BpeMerger(std::span<const Merge> merges);

  /// Merges a word in place.
  /// starts   if not null, the symbol at which each token begins, by its index in `word` as given
  /// cost     O(n log n) in the length of the word; 20 bytes of workspace a symbol
  void apply(std::vector<int32_t>& word, BpeWorkspace& workspace,
             std::vector<uint32_t>* starts = nullptr) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
  };
  static constexpr uint64_t kEmpty =
      ~uint64_t{0};  // ids are not negative, so no pair looks like it

  size_t slot_of(uint64_t pair) const;
  void push_candidate(BpeWorkspace& workspace, int32_t position) const;

  std::vector<Merge> merges_;  // by rank
  std::vector<Slot> slots_;    // open addressing, linear probing, at most half full
  int shift_ = 0;              // 64 - log2(slots)
};

}  // namespace tandem::text
