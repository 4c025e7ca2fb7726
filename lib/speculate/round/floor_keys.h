#pragma once
#include "kernels/tree/verify_trees.h"
#include "recipe/fields.h"
#include "speculate/round/verify_choice.h"

namespace tandem::speculate {

/// Keys of sections `spec` that say what rules with a floor ask of drafted tokens.
struct FloorKeys {
  double floor = FloorRule{}.probability, delta = FloorRule{}.delta, score_temperature = 0.6;

  template <class V>
  void fields(V& v) {
    v("floor", floor, recipe::at_least(0),
      "verify floor, floor_or_argmax, typical: probability that passes; above 1 none does");
    v("delta", delta, recipe::above(0),
      "verify typical: the floor is at most this times e^-entropy");
    v("score_temperature", score_temperature, recipe::above(0),
      "verify floor, floor_or_argmax, typical: of the softmax that probabilities are of");
  }
  bool operator==(const FloorKeys&) const = default;
  FloorRule rule() const {
    return {
        .probability = floor, .temperature = static_cast<float>(score_temperature), .delta = delta};
  }
};

/// The rounds around need to know by what probability rounds within accept.
inline void check_rule_within(VerifyChoice verify_within, recipe::Problems& p) {
  if (is_lossy(verify_within))
    p.field("spec.verify_within",
            "spec.verify_within: {} is not supported, because outer steps need the probabilities "
            "of inner tokens; choose auto",
            recipe::yaml_text(verify_within));
}

}  // namespace tandem::speculate
