#pragma once
#include <cstdint>
#include <vector>

namespace tandem::train {

/// Documents that one forward and backward pass runs over, one after another without padding. No
/// row attends to another document's.
struct MicroBatch {
  std::vector<int32_t> tokens;   // [rows]
  std::vector<int32_t> targets;  // [rows] the token that the row predicts; -1: not supervised
  std::vector<int32_t> document_begin;  // [documents + 1] first row of each; ends with `rows`
};

}  // namespace tandem::train
