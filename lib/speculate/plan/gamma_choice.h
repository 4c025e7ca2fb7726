#pragma once
#include <functional>
#include <optional>

#include "speculate/plan/sheet_cost.h"

namespace tandem::speculate {

/// A gamma and what follows from it.
struct GammaChoice {
  int gamma = 0;      // 0: plain decoding is faster
  double tokens = 1;  // of a sequence and round, expected
  double round_ms = 0;
  double token_ms = 0;  // of a sequence
  double speedup = 1;   // over plain decoding
};

GammaChoice at_gamma(const StepCost& cost, int gamma, double alpha);

/// The chain of one drafted token or more with the highest speed-up, the shortest of equals; gamma
/// 0 where no chain's verification is known.
GammaChoice best_chain(const StepCost& cost, double alpha);

/// The same, but gamma 0 where plain decoding is as fast. Where round
/// times grow by equal or rising steps it is the gamma at which the marginal rule stops: one more
/// token as long as alpha^(gamma+1) / tokens(gamma) > (round(gamma+1) - round(gamma)) /
/// round(gamma). All are tried, because the fixed part of a round and the steps of kernels' tiles
/// let that rule stop early.
GammaChoice best_gamma(const StepCost& cost, double alpha);

/// The lowest alpha that gives a speed-up, and the gamma that needs it; none where no alpha does.
struct LeastAlpha {
  double alpha = 1;
  int gamma = 0;
};
std::optional<LeastAlpha> least_alpha(const StepCost& cost, double speedup);

/// Steps wherever they are asked for: of a data sheet, or from measured ones.
using CostAt = std::function<StepCost(const Workload&)>;

/// The shortest context up to `longest`, in tokens, from which on speculation at its best gamma is
/// faster than plain decoding; none where it is not at `longest`. Found by halving, to 1 %.
std::optional<double> pays_from(const CostAt& cost, double alpha, int batch, double longest);

struct Batches {
  int small = 1, large = 2;
};
/// Returns the shortest context from which on the larger batch gains at least as much as the
/// smaller one. The speed-up no longer falls with the batch there.
std::optional<double> inflection_context(const CostAt& cost, double alpha, const Batches& batches,
                                         double longest);

}  // namespace tandem::speculate
