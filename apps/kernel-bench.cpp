// kernel-bench: checks every kernel against its reference, then times it.
#include <fmt/ranges.h>

#include "bench/kernel_cases.h"
#include "cli/main_wrapper.h"
#include "tools/kernel_bench.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "kernel-bench",
    .purpose = "Check kernels against references and time them against the machine's limits",
    .kind = "kernel-bench",
    .examples = {"kernel-bench --family attention --family linear",
                 "kernel-bench --family norm -s bench.rows=[1,64,4096] -s bench.dim=4096",
                 "kernel-bench --sweep run.threads=1,2 --format jsonl -o kernels.jsonl",
                 "TANDEM_ISA=avx2 kernel-bench --family sample", "kernel-bench --limits",
                 "kernel-bench --all"},
    .flags = {{.names = "--all", .value = "", .text = "run all kernels (takes minutes)"},
              {.names = "--family",
               .value = "NAME",
               .text = fmt::format("{}, repeatable", fmt::join(bench::kernel_families(), ", ")),
               .key = "bench.families"},
              {.names = "--limits",
               .value = "",
               .text = "measure, save and print this machine's limits, without running kernels"}},
    .formats = cli::kRecordFormats,
    .sweeps = true,
    .appends = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::KernelBench>(kInfo, argc, argv); }
