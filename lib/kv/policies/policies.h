#pragma once
#include <memory>

#include "kv/policy.h"

// The policies, one file each. make_policy chooses.
namespace tandem::kv {

std::unique_ptr<Policy> make_full(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_streaming(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_oracle(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_quest(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_lsh(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_hybrid(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_snapkv(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_retrieval(const recipe::Cache& cache, const Bounds& bounds);
std::unique_ptr<Policy> make_verified(const recipe::Cache& cache, const Bounds& bounds);
/// The policy of `cache.policy`.
std::unique_ptr<Policy> make_external(const recipe::Cache& cache, const Bounds& bounds);

}  // namespace tandem::kv
