#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "model/adapters/fused_source.h"
#include "model/adapters/low_rank_merge.h"

namespace tandem::model {

/// Factors of a matrix's change, W + B A, in f32.
struct Factors {
  MatrixId id = {};
  int64_t rank = 0;
  std::vector<float> a = {}, b = {};  // [rank, in], [out, rank]
};

/// Whether all of their numbers are finite: those of a large weight may not be.
bool is_finite(const Factors& factors);

/// The same without their memory, for write_low_rank_adapter; `factors` must outlive the result.
std::vector<LowRankDelta> factor_views(std::span<const Factors> factors);

/// The change that a list of adapters makes of a matrix as factors; rank 0 where there is none. Of
/// slices one rank for each feature: A has ones at the columns of o and down and B their change, of
/// rows the other way round. Then those of LoRA, one after the other: A as it is, B times gamma
/// and the adapter's weight.
/// sliced   fused_source of the slices among `adapters` alone
/// numerics B A is the change, rounded once an element to f32 where one adapter makes it
/// errors   none; no adapter may be of DoRA, whose change is no product of factors
Factors exact_factors(const WeightSource& base, const WeightSource& sliced,
                      std::span<const WeightedAdapter> adapters, MatrixId id,
                      const ModelConfig& config);

/// Factors of at most a given rank.
struct ShortenedFactors {
  Factors factors;
  double change = 0;  // sum of the squares of B A
  double lost = 0;    // of B A less that of the shortened factors
};

/// The best factors of rank `most` in the Frobenius norm: QR of both, then the SVD of the product
/// of their triangles, in f64. Factors of that rank or less are returned as they are.
/// shapes   a [rank, in], b [out, rank], finite
/// cost     O((out + in + rank) rank^2); nothing of size [out, in] is made
ShortenedFactors shorten_factors(Factors factors, int64_t most);

/// Singular values of B A, descending, rank of them at most.
std::vector<double> singular_values(const Factors& factors);

}  // namespace tandem::model
