#pragma once
#include <span>

#include "kv/key_list.h"
#include "kv/policies/key_codes.h"
#include "recipe/sections.h"

namespace tandem::kv {

/// What stands for the indexed keys that a query head does not read exactly: by runs of keys, the
/// sum of their estimated weights times the mean of their values. A sample may correct it: each
/// sampled key counts with its own weight over its probability, and what the estimate holds of it
/// over the same probability is taken off, so that sums are unbiased under any estimates.
struct HybridTailParams {
  const recipe::Hybrid& spec;
  const KeyQuery& query;
  int head;                        // of the query's
  std::span<const float> scores;   // [n] estimated log weights; -inf: read exactly
  float threshold;                 // least score of the keys that are read exactly
  float origin;                    // the log weight of score 0
  int first_id;                    // token of scores[0]
  std::span<const MeanRows> rows;  // of the indexed keys
  double exact_mass;   // estimated weights of the exact keys, relative to exp(threshold)
  double scale;        // multiplies scores
  const float* draws;  // tail sampled: [n] of ops::draw_exponentials
  float* masses;       // out [runs]
  int32_t* ids;        // room for [n + 16]
  float* bias;         // room for [n + 16]
};
/// Adds the tail to a list that has its exact keys.
void add_tail(const HybridTailParams& params, KeyList& list);

}  // namespace tandem::kv
