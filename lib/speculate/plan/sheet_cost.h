#pragma once
#include <optional>

#include "speculate/plan/draft_keys.h"
#include "speculate/plan/step_cost.h"

namespace tandem::speculate {

/// Rates that bound a forward on a machine, as reached, not those of a data sheet.
struct MachineRates {
  int ranks = 1;            // GPUs that share every layer (tensor parallel)
  double flops_s = 0;       // of dense products, FLOP/s of one GPU
  double read_bytes_s = 0;  // of memory, bytes/s of one GPU
  double link_bytes_s = 0;  // between GPUs, bytes/s of one
  double reduction_s = 0;   // latency of one sum over all ranks
  double forward_s = 0;     // of every forward, of any size
  double round_s = 0;       // of every round: drawing, verification, host
};

/// A forward over `rows` tokens of each of `batch` sequences that read `keys` tokens.
struct ForwardSize {
  int batch = 1, rows = 1;
  double keys = 0;
};

/// Its time by parts, in seconds.
struct ForwardTime {
  double linear_s = 0, attention_s = 0, reductions_s = 0, fixed_s = 0;
  bool linear_computes = false, attention_computes = false;  // arithmetic bounds it, not memory

  double total_s() const { return linear_s + attention_s + reductions_s + fixed_s; }
};

/// Applies the roofline to each part: weights are read once, keys once a sequence, for any rows.
ForwardTime forward_time(const MachineRates& machine, const ModelCosts& costs,
                         const ForwardSize& size);

/// Share of a model's KV on the GPU that holds most of it.
double kv_share(const MachineRates& machine, const ModelCosts& costs);
/// Seconds that reading (or writing) `bytes` of KV takes, spread over the ranks.
double kv_seconds(const MachineRates& machine, const ModelCosts& costs, double bytes);

/// A draft, as far as its cost goes.
struct PlannedDraft {
  std::optional<ModelCosts> model = {};  // none: no forward drafts, as with prompt lookup
  KeyChoice choice = {};
};

/// A batch at a context, in tokens of each sequence.
struct Workload {
  int batch = 1;
  double context = 0;
};

/// Inputs of the roofline for a target and its draft.
struct PlanInputs {
  MachineRates machine;
  ModelCosts target;
  PlannedDraft draft = {};
  int most_gamma = 16;         // forwards of as many tokens and one are known
  KeyChoice target_keys = {};  // which the target reads: of inner rounds a part
};

/// Steps by the roofline, for chains and trees of as many nodes.
StepCost sheet_cost(const PlanInputs& plan, const Workload& work);

/// Holds what lies in a machine's memory.
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

// Self-speculation as the batch grows beyond all bounds: weights and fixed parts no longer count,
// and the rest has a closed form.

/// A chain that the target drafts for itself from `budget` keys.
struct SelfDraft {
  int gamma = 3;
  double alpha = 0.8;
  double budget = 512;  // tokens
};

/// Keys that take as long to read as one row of the linear layers takes to compute: R, in tokens.
double key_equivalent_of_row(const MachineRates& machine, const ModelCosts& costs);

/// The shortest context with that speed-up, in tokens (0 where every context has it); none where a
/// round's expected tokens are not more than the speed-up.
/// row_keys  R
std::optional<double> critical_context(double row_keys, const SelfDraft& draft, double speedup);

}  // namespace tandem::speculate
