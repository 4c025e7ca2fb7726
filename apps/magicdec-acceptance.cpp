// magicdec-acceptance: how often drafts are accepted, by draft, budget, temperature and kind of
// text.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/acceptance/point.h"
#include "tools/bench/draft_sweep.h"
#include "tools/prompts/prompt_flags.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "magicdec-acceptance",
    .purpose = "Measure acceptance rates of drafts by KV budget, temperature and text",
    .kind = "draft-acceptance",
    .examples =
        {"magicdec-acceptance -r magicdec/acceptance-tiny-16m",
         "magicdec-acceptance -r magicdec/acceptance-tiny-16m --sweep "
         "bench.prompts=prose,kv,needle8,cwe -o out.jsonl",
         "magicdec-acceptance -r magicdec/acceptance-tiny-16m -s "
         "'bench.drafts=[{name: snapkv, cache: {kind: snapkv}, budget: 512}]' -s "
         "bench.budgets=[128,256]",
         "magicdec-acceptance -r magicdec/acceptance-tiny-16m -s bench.speculate=false --format "
         "md",
         "magicdec-acceptance -r magicdec/acceptance-tiny-16m -s bench.prompts=given -p \"Once "
         "upon "
         "a time\" -s accept.width=8 -o vectors.jsonl"},
    .flags = tools::prompt_flags(),
    .positional = "prompt",
    .upgrade = speculate::upgrade_pair,
    .formats = cli::kRecordFormats,
    .sweeps = true,
    .appends = true,
    .resumes = true};

}  // namespace

int main(int argc, char** argv) {
  return cli::run_tool<tools::DraftSweep<tools::AcceptancePoint>>(kInfo, argc, argv);
}
