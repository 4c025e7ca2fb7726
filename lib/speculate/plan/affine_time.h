#pragma once
#include <span>

namespace tandem::speculate {

/// A measured time of a forward.
struct TimePoint {
  int batch = 1;
  double context = 0;  // tokens
  double seconds = 0;
};

/// Time of a forward as a part of every call, one of every sequence, and one of every token that is
/// read: what rooflines leave out is in the first two.
struct AffineTime {
  double call_s = 0, sequence_s = 0, key_s = 0;

  double at(int batch, double context) const {
    return call_s + batch * (sequence_s + context * key_s);
  }
  double keys_per_s() const { return 1 / key_s; }
};

/// Least squares of the absolute errors. A single batch size leaves call_s at 0; times at a single
/// context leave sequence_s at 0, in key_s; times that all have context 0 leave key_s at 0.
/// errors   kind numeric: no points, or points that do not separate the parts
AffineTime fit_affine(std::span<const TimePoint> points);

}  // namespace tandem::speculate
