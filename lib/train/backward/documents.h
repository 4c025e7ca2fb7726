#pragma once
#include <span>
#include <vector>

#include "kv/cache.h"

namespace tandem::train {

/// The documents of a micro-batch as sequences of a cache, until the end of the scope. They are
/// never committed.
class Documents {
 public:
  /// begin    MicroBatch::document_begin
  Documents(kv::Cache& cache, std::span<const int32_t> begin) : cache_(cache) {
    for (size_t i = 0; i + 1 < begin.size(); ++i)
      rows_.push_back(
          {.slot = cache.create(), .n_rows = begin[i + 1] - begin[i], .last_chunk = true});
  }
  ~Documents() {
    for (const kv::SeqRows& d : rows_) cache_.release(d.slot);
  }
  Documents(const Documents&) = delete;
  Documents& operator=(const Documents&) = delete;

  /// All of them, in one prefill.
  kv::Step begin() { return cache_.begin({.phase = kv::Phase::prefill, .rows = rows_}); }

 private:
  kv::Cache& cache_;
  std::vector<kv::SeqRows> rows_;
};

}  // namespace tandem::train
