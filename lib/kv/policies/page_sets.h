#pragma once
#include <algorithm>
#include <vector>

#include "base/check.h"

namespace tandem::kv {

/// Sets of pages, of which each slot has one at most. Slots may share a set.
class PageSets {
 public:
  /// n_sets   as many as slots ever have one at the same time
  PageSets(int n_slots, int n_sets)
      : set_of_(static_cast<size_t>(n_slots), -1), n_slots_of_(static_cast<size_t>(n_sets)) {}

  /// The slot's set; -1: none.
  int of(int slot) const { return set_of_[static_cast<size_t>(slot)]; }
  /// Gives the slot a set that it shares with none; its old one if that is so. False: it is.
  bool own(int slot) {
    if (of(slot) >= 0 && n_slots_of_[static_cast<size_t>(of(slot))] == 1) return false;
    drop(slot);
    const auto free = std::ranges::find(n_slots_of_, 0);
    TANDEM_CHECK(free != n_slots_of_.end(), "{} sets are taken", n_slots_of_.size());
    take(slot, static_cast<int>(free - n_slots_of_.begin()));
    return true;
  }
  /// `to` has the set of `from` from now on.
  void share(int from, int to) {
    drop(to);
    if (of(from) >= 0) take(to, of(from));
  }
  void drop(int slot) {
    if (of(slot) >= 0) --n_slots_of_[static_cast<size_t>(of(slot))];
    set_of_[static_cast<size_t>(slot)] = -1;
  }

 private:
  void take(int slot, int set) {
    set_of_[static_cast<size_t>(slot)] = set;
    ++n_slots_of_[static_cast<size_t>(set)];
  }

  std::vector<int> set_of_;      // by slot
  std::vector<int> n_slots_of_;  // by set
};

}  // namespace tandem::kv
