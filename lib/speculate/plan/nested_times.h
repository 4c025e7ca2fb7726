#pragma once
#include "speculate/plan/draft_plan.h"
#include "speculate/tree/timing.h"

namespace tandem::speculate {

/// What nested rounds and their parts cost, for one batch at one context.
struct NestedTimes {
  TimeBucket outer;  // target: the model with all keys; draft: the same under its retrieval
  TimeBucket inner;  // target: the model under its retrieval; draft: the small model
  double outer_overhead_ms = 0, inner_overhead_ms = 0;  // the rest of a round that each verifies
  double token_ms = 0;       // of each token where keys are retrieved: its share of a rebuild
  bool skip_deepest = true;  // as in TimingTable

  double plain_ms() const { return outer.target.at(1); }
};

/// From measured rounds: `outer` of the model over its retrieval, `inner` of the model under its
/// retrieval over the small one. Where they were not timed, as MeasuredTimes has it.
/// errors   kind input: neither there nor fitted
NestedTimes measured_nested_times(const TimingTable& outer, const TimingTable& inner,
                                  const Workload& work);

/// What the roofline needs to know of a target, its retrieval and a small model.
struct NestedInputs {
  MachineRates machine;
  ModelCosts target;
  KeyChoice retrieval = {.keys = DraftKeys::retrieval, .budget = 4096, .page = 8};
  double rebuild_tokens = 0;     // keys are retrieved again after as many new tokens; 0 = never
  PlannedDraft small = {};       // no model: prompt lookup
  double host_keys_bytes_s = 0;  // rate at which all keys come from host memory; 0: they lie here
  double resident_share = 0;     // of the layers whose keys lie here nevertheless
  int most_nodes = 64;           // of a forward, a sequence
};

/// Forwards that read keys of host memory take as long as their copies, if that is longer.
NestedTimes roofline_nested_times(const NestedInputs& inputs, const Workload& work);

}  // namespace tandem::speculate
