#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "decode/engine.h"

namespace tandem::eval {

/// What a decode step of one sequence reads, mean over the rows of a case.
struct Reads {
  double selected = 0;  // share of the visible keys that a query head chooses, in sparse layers
  double fixed = 0;     // share that it reads for any query: sinks, recent, generated tokens
  double bytes = 0;     // of keys, values and the policy's index, all layers
};

/// Counts what rows under one policy read. Rules on positions are counted for each case; what a
/// selector chose, which the cache counts for all sequences of a step together, is the mean over
/// the cases that ran together.
class ReadMeter {
 public:
  ReadMeter(const decode::Engine& engine, int policy, size_t n_cases);

  /// `n_rows` rows of case `i`, after its first `length` tokens.
  void add(size_t i, int length, int n_rows);
  /// Of case `i`; absent when it had no rows.
  std::optional<Reads> of(size_t i) const;

 private:
  struct Count {
    double rows = 0;
    // Of policies without a selector:
    double keys = 0;  // by the policy's rules, a KV head, over rows and layers
    double full = 0;  // the same for full attention
    // Of those that choose by content on a GPU, over layers where they do: keys that a query head
    // chooses, that it reads for every query, and of how many.
    double chosen = 0, fixed = 0, chosen_of = 0;
  };
  Reads chosen() const;

  const kv::Cache& cache_;
  int policy_;
  kv::KeyUsage before_;
  std::vector<Count> counts_;
};

}  // namespace tandem::eval
