// sequoia-bench: the benchmark of magicdec-bench, with examples of token trees.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/bench/bench.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "sequoia-bench",
    .purpose = "Compare token trees of several sizes and depths with plain decoding",
    .kind = "bench",
    .examples = {"sequoia-bench -r sequoia/bench-tiny-16m",
                 "sequoia-bench -r sequoia/bench-llama-2-7b-68m --device cuda -o out.jsonl",
                 "sequoia-bench -r sequoia/bench-tiny-16m -s tree.sizes=[8,16] -s "
                 "tree.levels=[3,5] --format md",
                 "sequoia-bench -r sequoia/bench-tiny-16m --sweep sampling.temperature=0,0.6,1",
                 "sequoia-bench -r sequoia/bench-llama-2-7b-68m --device cuda --dry-run"},
    .flags = {},
    .upgrade = speculate::upgrade_drafts,
    .formats = cli::kRecordFormats,
    .sweeps = true,
    .appends = true,
    .resumes = true};

}  // namespace

int main(int argc, char** argv) {
  return cli::run_tool<tools::BenchTool<tools::BenchWork::drafts>>(kInfo, argc, argv);
}
