#pragma once
#include <optional>
#include <string>

#include "base/gpu_cards.h"
#include "tensor/tensor.h"

namespace tandem::machine {

/// Rates of a machine whose GPU works with keys in host memory, GB/s, and where they come from.
struct HostedRates {
  double gpu_gbps = 0;         // the GPU's memory, streaming reads
  double gpu_index_share = 1;  // of it, reached where a kernel ranks keys by an index
  double link_gbps = 0;        // host memory to GPU, long copies
  double link_row_share = 1;   // of it, reached where a kernel fetches rows of 256 bytes
  double dram_gbps = 0;        // host memory to all CPU threads, streaming reads
  double dram_rows_gbps = 0;   // the same of rows of 256 bytes here and there
  /// Of the bytes that the link takes from host memory, what the CPU can read the less meanwhile.
  double dram_shared = 0;
  /// 1e9 scores by codes a second, of all CPU threads, with all that a choice of keys needs of
  /// them; 0: as fast as codes are read.
  double code_gscores = 0;
  /// What a layer costs beyond bytes when the CPU serves it, us: flags, the threads' start and end,
  /// two small copies, a merge; and when the GPU chooses its keys: a chain of short kernels.
  double turn_us = 0, choose_us = 0;
  std::string gpu_source, host_source;  // "measured", "data sheet of h200", "assumed"
};

/// Rates of the GPU that is planned for, by its data sheet, and of a host that was not measured;
/// a card of no model gets those of an H100.
HostedRates assumed_rates(const GpuCard& card);

/// Rates of this machine and its GPU: measured, those of the host once a boot, the GPU's once a
/// process, before an engine fills it.
/// errors   kind device, memory
HostedRates measured_rates(Device gpu);

}  // namespace tandem::machine
