// magicdec-bench: whether speculation pays at a batch and context, with which draft, by how much.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/bench/bench.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "magicdec-bench",
    .purpose =
        "Compare drafts with plain decoding over batch size and context length, measured or "
        "calculated",
    .kind = "bench",
    .examples =
        {"magicdec-bench -r magicdec/tiny-16m",
         "magicdec-bench -r magicdec/tiny-16m --sweep run.batch=1-16*4 --sweep "
         "bench.budget=128,512 -o out.jsonl",
         "magicdec-bench -r magicdec/llama3-8b --predict",
         "magicdec-bench -r magicdec/llama3-8b --predict --sweep run.context=8Ki-128Ki*2 --format "
         "md",
         "magicdec-bench -r magicdec/llama3-8b --predict -s bench.hardware.card=h100"},
    .flags = {{.names = "--predict",
               .value = "",
               .text = "calculate times and speed-ups only, without a GPU or weights",
               .key = "bench.predict",
               .on = "only",
               .off = "no"}},
    .upgrade = speculate::upgrade_drafts,
    .formats = cli::kRecordFormats,
    .sweeps = true,
    .appends = true,
    .resumes = true};

}  // namespace

int main(int argc, char** argv) {
  return cli::run_tool<tools::BenchTool<tools::BenchWork::drafts>>(kInfo, argc, argv);
}
