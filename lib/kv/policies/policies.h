#pragma once
#include <memory>

#include "kv/policy.h"

// The policies, one file each. make_policy chooses.
namespace tandem::kv {

std::unique_ptr<Policy> make_full(const Bounds& bounds);
std::unique_ptr<Policy> make_streaming(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_oracle(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_quest(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_lsh(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_hybrid(const recipe::Cache& cache, const Bounds& bounds);

/// Gives back what no later row can see under a window. The last token may run again (a saved or
/// shared text that goes on without new tokens), so its window is the one that counts.
void drop_behind_window(PagedStore& store, int slot, int sinks, int window);

}  // namespace tandem::kv
