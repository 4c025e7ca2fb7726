#pragma once
#include <optional>

#include "recipe/cache_section.h"
#include "speculate/plan/model_costs.h"

// Bytes that choosing a draft's keys costs, for one sequence and all layers.
namespace tandem::speculate {

/// A draft's choice of keys.
struct KeyChoice {
  recipe::CacheKind keys = recipe::CacheKind::full;
  double budget = 512;        // tokens that a step reads
  int page = 16;              // tokens of a page or chunk that is chosen as one
  double refresh_tokens = 0;  // new tokens after which keys are chosen again, 0: never
};

/// The choice that a cache makes at that context; none for policies whose costs are not known.
std::optional<KeyChoice> key_choice(const recipe::Cache& cache, double context);
/// Tokens that a draft step reads of `context`.
double keys_read(const KeyChoice& choice, double context);
/// Read and written in every draft step in order to choose: 0 where the choice stands.
double select_bytes(const KeyChoice& choice, const ModelCosts& costs, double context);
/// Read and written in every round: the scores that a verification leaves.
double round_bytes(const KeyChoice& choice, const ModelCosts& costs, double context);
/// Read and written to choose again from the last accepted queries: snapkv, retrieval; 0 for
/// others.
double refresh_bytes(const KeyChoice& choice, const ModelCosts& costs, double context);

}  // namespace tandem::speculate
