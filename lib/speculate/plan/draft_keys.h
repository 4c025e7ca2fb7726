#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "speculate/plan/model_costs.h"

// Bytes that choosing a draft's keys costs, for one sequence and all layers.
namespace tandem::speculate {

/// Which of a sequence's keys a draft reads, named as cache.kind where that has it.
enum class DraftKeys : uint8_t {
  full,       // all
  streaming,  // the first and the last
  snapkv,     // chosen by the last queries of the prompt
  verified,   // chosen by the verification before
  quest,      // pages, by bounds of their keys, in each step
  retrieval,  // chunks, by their mean keys and the last query of the prompt
  topk,       // by exact scores of all keys, in each step: the bound of acceptance
};
constexpr std::array<std::string_view, 7> enum_names(DraftKeys) {
  return {"full", "streaming", "snapkv", "verified", "quest", "retrieval", "topk"};
}

/// A draft's choice of keys.
struct KeyChoice {
  DraftKeys keys = DraftKeys::full;
  double budget = 512;  // tokens that a step reads
  int page = 16;        // tokens of a page or chunk that is chosen as one
};

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
