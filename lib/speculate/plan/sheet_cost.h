#pragma once
#include <optional>

#include "speculate/plan/draft_keys.h"
#include "speculate/plan/step_cost.h"

namespace tandem::speculate {

/// What bounds a forward on a machine: rates that are reached, not those of a data sheet.
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

/// By the roofline of each part: weights are read once, keys once a sequence, however many rows.
ForwardTime forward_time(const MachineRates& machine, const ModelCosts& costs,
                         const ForwardSize& size);

/// Share of a model's KV on the GPU that holds most of it.
double kv_share(const MachineRates& machine, const ModelCosts& costs);
/// Seconds that reading (or writing) `bytes` of KV takes, spread over the ranks.
double kv_seconds(const MachineRates& machine, const ModelCosts& costs, double bytes);

/// Who drafts, as far as its cost goes.
struct PlannedDraft {
  std::optional<ModelCosts> model = {};  // none: no forward drafts, as with prompt lookup
  KeyChoice choice = {};
  double refresh_tokens = 0;  // keys are chosen again after as many new tokens; 0 = never
};

/// A batch at a context, in tokens of each sequence.
struct Workload {
  int batch = 1;
  double context = 0;
};

/// What the roofline needs to know of a target and its draft.
struct PlanInputs {
  MachineRates machine;
  ModelCosts target;
  PlannedDraft draft = {};
  int most_gamma = 16;         // forwards of as many tokens and one are known
  KeyChoice target_keys = {};  // which the target reads: of inner rounds a part
};

/// Steps by the roofline, for chains and trees of as many nodes.
StepCost sheet_cost(const PlanInputs& plan, const Workload& work);

}  // namespace tandem::speculate
