#pragma once
#include "kv/policy.h"

namespace tandem::kv {

/// Bytes that a decode step of all its sequences moves for their keys, where those of long texts
/// lie in host memory: an estimate, from budgets and from shares that policies have measured
/// (Policy::keys_read). Weights are not among them.
struct StepTraffic {
  int hosted_layers = 0;
  int choosing_layers = 0;  // of them, those where the GPU chooses keys
  double key_bytes = 0;     // that lie in host memory
  double chosen_bytes = 0;  // of them, read by the step, on either side

  // Of the GPU's memory.
  double gpu_keys = 0;   // layers that are not hosted, and the newest tokens of the others
  double gpu_index = 0;  // the index, where the GPU chooses
  double gpu_ring = 0;   // layers that come over the link, written and read again

  // Of host memory, by the CPU.
  double cpu_rows = 0;    // row by row: chosen keys and values, lines of scales; hash tables, norms
  double cpu_stream = 0;  // in order: all keys and values of a layer
  double cpu_codes = 0;   // in order, to rank keys by
  /// Scores by codes that the CPU computes, one a key and query head: more work than their bytes.
  double cpu_scores = 0;

  // Over the link.
  double link_rows = 0;    // keys and values that the GPU fetches
  double link_stream = 0;  // layers that are copied ahead of their use
  double link_small = 0;   // queries and lists to the host, results back

  double gpu() const { return gpu_keys + gpu_index + gpu_ring; }
  double cpu() const { return cpu_rows + cpu_stream + cpu_codes; }
  double link() const { return link_rows + link_stream + link_small; }
  /// Share of the keys in host memory that are read, as often as query heads read them separately.
  double share() const { return key_bytes > 0 ? chosen_bytes / key_bytes : 0; }
};

/// The traffic of `batch` sequences, each with its `length`-th token in the step.
/// cache    keys in host memory, kind lsh, hybrid or full; `attend` decided, and with both
///          cpu_share, too
/// errors   kind recipe when the settings do not fit the model
StepTraffic step_traffic(const recipe::Cache& cache, const Geometry& geometry, int length,
                         int batch);

}  // namespace tandem::kv
