#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/trainer.h"

namespace tandem::train {

/// A learning rate that was tried, and the loss after the trial.
struct TriedRate {
  double rate = 0;
  double loss = 0;  // not finite: the trial diverged
};

/// Holds the result of a learning-rate range test.
struct RangeTest {
  /// The highest choice where no rate lowers the loss.
  static constexpr double kSafeRate = 2e-4;

  int64_t steps = 0;             // of each trial
  double start = 0;              // loss before the first step
  std::vector<TriedRate> tried;  // rates ascending
  double rate = 0;               // the choice
  bool learns = false;           // some rate lowers the loss
};

/// Steps of each trial for a run of `steps` steps.
int64_t trial_steps(int64_t steps);

/// The choice among rates that were tried, ascending: the one below that with the lowest loss, as a
/// trial is shorter than a run and favours high rates; the lowest if it is the best.
double choose_rate(std::span<const TriedRate> tried);

/// Chooses a learning rate. For each of some rates, half a decade apart, a trial makes a few steps
/// from the trainer's values, then measures the loss of its first batch and of the next one. The
/// trainer ends with the values that it had, moments of 0 and no steps done. All ranks get the same
/// result.
/// batches       micro-batches of each step of a trial, and of the step after it
/// before_step   called before each step or loss; may throw
/// errors   kind numeric: the loss is not finite before the first step, or after every trial
RangeTest test_range(Trainer& trainer, std::span<const std::vector<MicroBatch>> batches,
                     const std::function<void()>& before_step);

}  // namespace tandem::train
