#pragma once
#include <vector>

#include "kv/cache.h"

namespace tandem::eval {

/// Sequences of the cache that end with their scope.
class Slots {
 public:
  explicit Slots(kv::Cache& cache) : cache_(cache) {}
  ~Slots() {
    for (const int id : ids_) cache_.release(id);
  }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  void add(int id) { ids_.push_back(id); }
  size_t size() const { return ids_.size(); }
  int operator[](size_t i) const { return ids_[i]; }

 private:
  kv::Cache& cache_;
  std::vector<int> ids_;
};

}  // namespace tandem::eval
