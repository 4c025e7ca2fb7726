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
      "smallest probability of an accepted token, above 1 = none is accepted. Only with verify: "
      "floor, floor_or_argmax or typical");
    v("delta", delta, recipe::above(0),
      "upper bound of floor as a multiple of e^-entropy. Only with verify: typical");
    v("score_temperature", score_temperature, recipe::above(0),
      "softmax temperature for the probability that is compared with floor");
  }
  bool operator==(const FloorKeys&) const = default;
  FloorRule rule() const {
    return {
        .probability = floor, .temperature = static_cast<float>(score_temperature), .delta = delta};
  }
};

/// The rounds around need to know by what probability rounds within accept.
inline void check_rule_within(const char* key, VerifyChoice verify_within, recipe::Problems& p) {
  if (is_lossy(verify_within))
    p.field(key,
            "{}: {} is not supported, because outer steps need the probabilities "
            "of inner tokens; choose auto",
            key, recipe::yaml_text(verify_within));
}

}  // namespace tandem::speculate
