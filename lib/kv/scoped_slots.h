#pragma once
#include <vector>

#include "kv/cache.h"

namespace tandem::kv {

/// Sequences of a cache that are released with the scope.
class ScopedSlots {
 public:
  explicit ScopedSlots(Cache& cache) : cache_(cache) {}
  ~ScopedSlots() {
    for (const int slot : slots_) cache_.release(slot);
  }
  ScopedSlots(const ScopedSlots&) = delete;
  ScopedSlots& operator=(const ScopedSlots&) = delete;

  int create(Readers readers = {}) { return slots_.emplace_back(cache_.create(readers)); }
  int fork(int slot, Readers readers) { return slots_.emplace_back(cache_.fork(slot, readers)); }
  const std::vector<int>& all() const { return slots_; }
  size_t size() const { return slots_.size(); }
  int operator[](size_t i) const { return slots_[i]; }

 private:
  Cache& cache_;
  std::vector<int> slots_;
};

}  // namespace tandem::kv
