#pragma once
#include <cstdint>

namespace tandem::train {

/// Learning rate over a run.
struct Schedule {
  enum class Kind : uint8_t { constant, linear, cosine };

  Kind kind = Kind::linear;
  double rate = 2e-4;  // after the warm-up
  int64_t warmup_steps = 0;
  int64_t steps = 1;       // of the run
  bool from_zero = true;   // the first step of a warm-up has rate 0, as in transformers
  double least_share = 0;  // of the rate, where it ends

  /// Of a step after `done` ones.
  double at(int64_t done) const;
};

}  // namespace tandem::train
