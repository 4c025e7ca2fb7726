#pragma once
#include "speculate/plan/sheet_cost.h"
#include "speculate/tree/timing.h"

namespace tandem::speculate {

/// A measured time of a forward.
struct TimePoint {
  int batch = 1;
  double context = 0;  // tokens
  double ms = 0;
};

/// Time of a forward as a part of every call, one of every sequence, and one of every token that is
/// read: what rooflines leave out is in the first two.
struct AffineTime {
  double call_ms = 0, sequence_ms = 0, key_ms = 0;

  double at(int batch, double context) const {
    return call_ms + batch * (sequence_ms + context * key_ms);
  }
};

/// Least squares of the absolute errors. A single batch size leaves call_ms at 0; times at a single
/// context leave sequence_ms at 0, in key_ms; times that all have context 0 leave key_ms at 0.
/// errors   kind numeric: no points, or points that do not separate the parts
AffineTime fit_affine(std::span<const TimePoint> points);

/// Steps at a batch and context by times that were measured at others.
class MeasuredCosts {
 public:
  /// where    of the table, for errors
  /// errors   kind input at `where`: a bucket that does not say its context
  MeasuredCosts(TimingTable table, std::string where);

  /// Interpolates between four measured points in batch and context, which is exact where
  /// times are affine (in their logarithms it would be 25 % too long at batch 2 of 1 and 4). Beyond
  /// them by the affine fit to all.
  /// most_gamma  each forward of chains up to it is known; none: trees, at the numbers of nodes of
  ///             the first bucket's
  /// errors   kind input at `where`: beyond them, and the points do not allow a fit
  StepCost at(const Workload& work, std::optional<int> most_gamma = {}) const;
  /// Returns true beyond the batches or contexts that were measured.
  bool is_fitted(const Workload& work) const;

 private:
  double ms(const Workload& work, TimeCurve StepCost::*curve, int n) const;

  TimingTable table_;
  std::string where_;
};

}  // namespace tandem::speculate
