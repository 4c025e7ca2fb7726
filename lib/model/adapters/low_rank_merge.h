#pragma once
#include <span>

#include "model/spec/roles.h"

namespace tandem::model {

/// Low-rank factors of a matrix, in f32.
struct LowRankDelta {
  MatrixId id = {};
  int64_t rank = 0;
  float gamma = 1;                        // W + gamma B A
  std::span<const float> a = {}, b = {};  // [rank, in], [rows, rank]
  std::span<const float> magnitude = {};  // [rows], of DoRA: what norm each row is scaled to
};

/// rows += gamma B A, and of DoRA each row scaled to its magnitude; in f32, norms in f64.
/// shapes   rows [n, in]; b and magnitude of the delta are those of these n rows
void merge_low_rank(std::span<float> rows, const LowRankDelta& delta);

}  // namespace tandem::model
