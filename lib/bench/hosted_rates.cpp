#include "bench/hosted_rates.h"

#include <fmt/format.h>

#include "base/parallel.h"
#include "bench/gpu_hardware.h"

namespace tandem::bench {
namespace {

/// As an H200 fetches rows through PCIe 5 of 16 lanes: 45.1 of 55.4 GB/s
/// (tests/records/gpu-h200-across.jsonl).
constexpr double kLinkRowShare = 0.81;

}  // namespace

HostedRates assumed_rates(const GpuCard& card) {
  // As 16 cores of a host of H200s read it; random rows of 256 bytes reach this share.
  constexpr double kDram = 104, kRowShare = 0.72;
  const bool known = card.read_gbps > 0;
  const GpuCard& rates = known ? card : *find_gpu_card("h100");
  return {.gpu_gbps = rates.read_gbps,
          .link_gbps = rates.link_gbps,
          .link_row_share = kLinkRowShare,
          .dram_gbps = kDram,
          .dram_rows_gbps = kRowShare * kDram,
          .gpu_source = known ? fmt::format("data sheet of {}", rates.name)
                              : fmt::format("data sheet of {}, assumed", rates.name),
          .host_source = "assumed"};
}

HostedRates measured_rates(Device gpu) {
  const Ceilings& of_gpu = gpu_ceilings(gpu);
  const Ceilings host = cached_ceilings(max_threads());
  if (of_gpu.mem_read_gbps <= 0 || of_gpu.copy_in_gbps <= 0)
    throw Error(ErrorKind::memory, gpu.name(),
                "has no room to measure its rates, which a plan of keys in host memory goes by: "
                "expected 1 GiB free")
        .hint(
            "wait for the processes that hold it (nvidia-smi lists them), or use another GPU with "
            "--device cuda:N");
  return {.gpu_gbps = of_gpu.mem_read_gbps,
          .link_gbps = of_gpu.copy_in_gbps,
          .link_row_share = kLinkRowShare,
          .dram_gbps = host.mem_read_gbps,
          .dram_rows_gbps = host.mem_rows_gbps,
          .gpu_source = "measured",
          .host_source = "measured"};
}

}  // namespace tandem::bench
