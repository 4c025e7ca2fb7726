#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/types.h"

namespace tandem::kv {

/// Which pages hold the tokens of each sequence: numbers alone, wherever the pages are. Pages are
/// reference counted, so that sequences fork for the price of a page table; a shared page is copied
/// when a sequence is about to write into it.
class Sequences {
 public:
  struct Spec {
    int n_pages = 0;    // of the pools
    int max_slots = 0;  // sequences
    int max_pages = 0;  // pages of one sequence, given-back ones included
  };
  /// Called with a page that has tokens and the one that takes its place.
  using CopyPage = std::function<void(int32_t from, int32_t to)>;

  explicit Sequences(const Spec& spec);

  /// A free slot with length 0.
  /// errors   kind memory when all are in use
  int acquire();
  void release(int slot);
  /// A new slot that shares all pages of `slot`.
  int fork(int slot);
  /// Gives an empty slot all pages and tokens of another.
  void share(int from, int to);

  /// Committed tokens.
  int length(int slot) const { return at(slot).length; }
  void set_length(int slot, int n) { at(slot).length = n; }
  /// Makes [length, n) writable: allocates missing pages and unshares others, of which only the one
  /// that length falls into has tokens to copy. Whole pages within `gap` are left out; with a gap,
  /// others that were freed are allocated again.
  /// errors   kind memory when the pool is exhausted
  void reserve(int slot, int n, const CopyPage& copy, Range gap = {0, 0});
  /// Unshares the pages of tokens [begin, end).
  /// errors   kind memory when the pool is exhausted
  void own(int slot, int begin, int end, const CopyPage& copy);
  /// Gives an empty slot n tokens, of which those from the page of `begin` on get pages.
  /// errors   kind memory when the pool is exhausted: the slot is empty still
  void adopt(int slot, int n, int begin);
  /// Shortens a sequence and gives back the pages past the end.
  void truncate(int slot, int n);
  /// Gives back the pages that lie wholly inside [begin, end).
  void drop(int slot, int begin, int end);
  /// Page of a token's position, -1 when given back or not allocated.
  int32_t page(int slot, int page_index) const;
  const std::vector<int32_t>& pages(int slot) const { return at(slot).pages; }
  /// Changes whenever pages(slot) does; no two tables ever have the same, and none has 0.
  uint64_t table_version(int slot) const { return at(slot).version; }
  /// Entries of pages(slot) that are -1.
  int pages_given_back(int slot) const { return at(slot).n_given_back; }
  int free_pages() const { return static_cast<int>(free_.size()); }

 private:
  struct Slot {
    bool used = false;
    int length = 0;
    std::vector<int32_t> pages;
    uint64_t version = 0;
    int n_given_back = 0;
    int gone_begin = 0, gone_end = 0;  // given back, all of them: drop begins behind
  };

  Slot& at(int slot);
  const Slot& at(int slot) const;
  void touch(Slot& slot) { slot.version = ++last_version_; }
  int32_t allocate();
  void unref(int32_t page);

  Spec spec_;
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;
  std::vector<Slot> slots_;
  uint64_t last_version_ = 0;
};

}  // namespace tandem::kv
