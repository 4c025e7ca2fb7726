// Rates that plans of keys in host memory go by, measured on this machine.
#include <doctest/doctest.h>

#include "base/parallel.h"
#include "machine/gpu_hardware.h"
#include "machine/hosted_rates.h"

using namespace tandem;

TEST_SUITE("gpu/bench/hosted_rates") {
  TEST_CASE("all five are measured, and are those that benches divide by") {
    constexpr Device kGpu{Device::Kind::cuda, 0};
    const machine::HostedRates rates = machine::measured_rates(kGpu);
    CHECK(rates.gpu_gbps == machine::gpu_ceilings(kGpu).mem_read_gbps);
    CHECK(rates.link_gbps == machine::gpu_ceilings(kGpu).copy_in_gbps);
    CHECK(rates.gpu_gbps > rates.link_gbps);
    CHECK(rates.link_gbps > 1);
    const auto host = machine::known_ceilings(max_threads());
    if (host) CHECK(rates.dram_gbps == host->mem_read_gbps);  // unless nothing can be kept here
    CHECK(rates.dram_rows_gbps > 0.1);
    CHECK(rates.code_gscores > 0);
    CHECK(rates.gpu_source == "measured");
    CHECK(rates.host_source.starts_with("measured"));  // or during other work
  }
}
