#include "machine/hosted_rates.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/parallel.h"
#include "machine/gpu_hardware.h"

namespace tandem::machine {
namespace {

// An H200, its link of PCIe 5 with 16 lanes and 16 cores of its host have these rates
// (records/host-kv.md). tests/bench/test_hosted_plan.cpp compares predicted with measured times.
constexpr double kLinkRowShare = 0.9;   // 30.4 ms a step where the GPU attends
constexpr double kGpuIndexShare = 0.3;  // a scan and a refinement of 168 MB take 118 us
constexpr double kDramShared = 0.5;     // the CPU's part of lists while the link brings the other
constexpr double kTurnUs = 50;          // lsh at 2,048 tokens, without its 40 MB
constexpr double kChooseUs = 80;        // prepare and choose of one sequence, lists, merge
constexpr double kCodeGscoresACore = 0.14;  // 94 M keys of 4 sequences for 4 heads each in 167 ms

HostedRates of_record() {
  return {.gpu_index_share = kGpuIndexShare,
          .link_row_share = kLinkRowShare,
          .dram_shared = kDramShared,
          .turn_us = kTurnUs,
          .choose_us = kChooseUs,
          .gpu_source = {},
          .host_source = {}};
}

}  // namespace

HostedRates assumed_rates(const GpuCard& card) {
  // As 16 cores of a host of H200s read it; random rows of 256 bytes reach this share.
  constexpr double kDram = 104, kRowShare = 0.72, kCores = 16;
  const bool known = card.read_gbps > 0;
  const GpuCard& sheet = known ? card : *find_gpu_card("h100");
  HostedRates rates = of_record();
  rates.gpu_gbps = sheet.read_gbps;
  rates.link_gbps = sheet.link_gbps;
  rates.dram_gbps = kDram;
  rates.dram_rows_gbps = kRowShare * kDram;
  rates.code_gscores = kCores * kCodeGscoresACore;
  rates.gpu_source = known ? fmt::format("data sheet of {}", sheet.name)
                           : fmt::format("data sheet of {}, assumed", sheet.name);
  rates.host_source = "assumed";
  return rates;
}

HostedRates measured_rates(Device gpu) {
  const Ceilings& of_gpu = gpu_ceilings(gpu);
  const Ceilings host = cached_ceilings(max_threads());
  if (of_gpu.mem_read_gbps <= 0 || of_gpu.copy_in_gbps <= 0)
    throw Error(ErrorKind::memory, gpu.name(),
                "expected 1 GiB free to measure its rates for an offloaded KV cache, found less")
        .hint(
            "wait until other processes free it (nvidia-smi lists them), or use another GPU with "
            "--device cuda:N");
  HostedRates rates = of_record();
  rates.gpu_gbps = of_gpu.mem_read_gbps;
  rates.link_gbps = of_gpu.copy_in_gbps;
  rates.dram_gbps = host.mem_read_gbps;
  // Rows are no faster; where they seem so, the machine was busier during the other measurement.
  rates.dram_rows_gbps = std::min(host.mem_rows_gbps, host.mem_read_gbps);
  rates.code_gscores = host.code_gscores;
  rates.gpu_source = "measured";
  rates.host_source = host.doubt.empty() ? "measured" : "measured during other work";
  return rates;
}

}  // namespace tandem::machine
