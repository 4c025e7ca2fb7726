#pragma once
#include <optional>

#include "speculate/plan/sheet_cost.h"

// Self-speculation as the batch grows beyond all bounds: weights and fixed parts no longer count,
// and the rest has a closed form.
namespace tandem::speculate {

/// A chain that the target drafts for itself from `budget` keys.
struct SelfDraft {
  int gamma = 3;
  double alpha = 0.8;
  double budget = 512;  // tokens
};

/// Keys that take as long to read as one row of the linear layers takes to compute: R, in tokens.
double key_equivalent_of_row(const MachineRates& machine, const ModelCosts& costs);

/// Speed-up over plain decoding at a context, in tokens, for an unbounded batch.
/// row_keys  R
double large_batch_speedup(double row_keys, const SelfDraft& draft, double context);

/// The shortest context with that speed-up, in tokens (0 where every context has it); none where a
/// round's expected tokens are not more than the speed-up.
std::optional<double> critical_context(double row_keys, const SelfDraft& draft, double speedup);

}  // namespace tandem::speculate
