#pragma once
#include "speculate/plan/model_costs.h"

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

/// Rows of a forward from which on arithmetic bounds the linear layers.
double compute_bound_rows(const MachineRates& machine, const ModelCosts& costs);

}  // namespace tandem::speculate
