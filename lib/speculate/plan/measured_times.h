#pragma once
#include "speculate/plan/draft_plan.h"
#include "speculate/tree/timing.h"

namespace tandem::speculate {

/// Rounds at a batch and context by times that were measured at others.
class MeasuredTimes {
 public:
  /// table    of chains: each forward over n nodes of every sequence
  /// where    of the table, for errors
  /// errors   kind input at `where`: a bucket that does not say its context
  MeasuredTimes(TimingTable table, std::string where);

  struct At {
    RoundTimes times;
    bool fitted = false;  // beyond the batches or contexts that were measured
  };
  /// Between four measured points around it bilinear in batch and context, which is exact where
  /// times are affine (in their logarithms it would be 25 % too long at batch 2 of 1 and 4). Beyond
  /// them by the affine fit to all.
  /// errors   kind input at `where`: beyond them, and the points do not allow a fit
  At at(const Workload& work, int most_gamma) const;
  /// Both curves there, at the numbers of nodes of the first bucket's.
  /// errors   as at
  TimeBucket bucket_at(const Workload& work) const;

 private:
  template <class Ms>
  double seconds(const Workload& work, const Ms& ms) const;
  bool surrounds(const Workload& work) const;

  TimingTable table_;
  std::string where_;
};

}  // namespace tandem::speculate
