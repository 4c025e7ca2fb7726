// pig-bench: prefill and decode speed of a model over cache policy, batch and context.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/bench/bench.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "pig-bench",
    .purpose =
        "Measure prefill and decode speed over attention policy, batch size and context length",
    .kind = "bench",
    .examples =
        {"pig-bench -m tiny-16m --phase decode --sweep run.batch=1,4 --format md",
         "pig-bench -r pig/compare -o out.jsonl --resume",
         "pig-bench -m tiny-16m --sweep cache.kind=full,streaming --sweep run.context=1Ki-8Ki*2",
         "pig-bench -r pig/bench-llama-3.2-1b --dry-run",
         "pig-bench -m synthetic:llama-3.2-1b --phase linear --sweep run.prefill_chunk=512,2048"},
    .flags =
        {{.names = "--phase",
          .value = "NAME",
          .text =
              "phase to measure: prefill, decode, linear, attention, load or switch, repeatable",
          .key = "bench.phases"}},
    .upgrade = speculate::upgrade_drafts,
    .formats = cli::kRecordFormats,
    .sweeps = true,
    .appends = true,
    .resumes = true};

}  // namespace

int main(int argc, char** argv) {
  return cli::run_tool<tools::BenchTool<tools::BenchWork::phases>>(kInfo, argc, argv);
}
