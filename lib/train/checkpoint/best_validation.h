#pragma once
#include <cmath>
#include <cstdint>

namespace tandem::train {

/// The search of a run for its best weights: those of the lowest validation loss.
struct BestValidation {
  int64_t last = 0;   // step of the last validation; 0 = none yet
  int64_t step = 0;   // of the best one; 0 = none yet
  double loss = 0;    // of the best one
  int64_t worse = 0;  // validations since the best one

  bool found() const { return step > 0; }
  /// Takes a validation in; whether it is the best. The first of equal losses is; one that is not
  /// finite never is.
  bool add(int64_t at, double found_loss) {
    last = at;
    const bool better = std::isfinite(found_loss) && (!found() || found_loss < loss);
    if (better) {
      step = at;
      loss = found_loss;
    }
    worse = better ? 0 : worse + 1;
    return better;
  }
  /// patience   validations in a row without a better loss after which a run ends; 0 = never
  bool gives_up(int64_t patience) const { return patience > 0 && worse >= patience; }

  bool operator==(const BestValidation&) const = default;
};

}  // namespace tandem::train
