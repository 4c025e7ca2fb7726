#pragma once
#include "speculate/plan/sheet_cost.h"

namespace tandem::speculate {

/// What the memory of a machine holds.
struct Holdings {
  double memory_bytes = 0;   // of one GPU, that may be used
  double buffer_bytes = 0;   // on each GPU, however many sequences
  double context = 0;        // longest sequence, tokens
  double draft_context = 0;  // tokens that each sequence has in a cache of the draft; 0 = none
};

/// Sequences that fit, at least 0.
/// draft    null where the target drafts for itself, or nothing is drafted by a model
int most_sequences(const MachineRates& machine, const ModelCosts& target, const ModelCosts* draft,
                   const Holdings& holdings);

}  // namespace tandem::speculate
