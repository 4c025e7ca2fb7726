#pragma once
#include <span>

#include "kv/key_list.h"
#include "kv/policies/key_codes.h"
#include "recipe/sections.h"

namespace tandem::kv {

/// The keys that query heads of a KV head read exactly: of the best by sign the best by all bits.
/// One head has a separate set; several get one, by their ranks (kernels/code/key_ranks.h).
struct HybridExactParams {
  const recipe::Hybrid& spec;
  const KeyCodes& codes;
  const KeyQuery& query;
  int ordinal;                         // of the sparse layer
  std::span<const CodeQuery> queries;  // of the heads
  float* scores;                       // [heads, stride] by signs; out: see ExactKeys
  int64_t stride;
  int n;         // keys
  int wanted;    // of them; with budget mass at most
  int first_id;  // token of the first key
  int32_t* ids;  // out: room for [n + 16]
  // Scratch.
  int32_t* candidates;  // [n + 16]
  float* refined;       // [heads, stride]
  float* ranks;         // [n + 16], for several heads
  float* select;        // [n + 16]
  float* masses;        // [runs]
};
/// What a head's tail goes by. Among the head's scores those of the set have become -inf, those of
/// the other candidates refined; these do not exceed the threshold.
struct ExactKeys {
  int n;
  float threshold;
  double mass;  // budget error: sum of their estimated weights, relative to exp(threshold)
};
/// Adds the keys to the lists of the heads.
void choose_exact(const HybridExactParams& params, std::span<KeyList> lists,
                  std::span<ExactKeys> exact);

}  // namespace tandem::kv
