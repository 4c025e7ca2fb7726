// sequoia-acceptance: measures how often a target accepts the tokens of a draft, by place among
// siblings.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/acceptance/point.h"
#include "tools/prompts/prompt_flags.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "sequoia-acceptance",
    .purpose = "Measure the acceptance rate of each child in a token tree (acceptance vector)",
    .kind = "acceptance",
    .examples = {"sequoia-acceptance -r sequoia/acceptance-tiny-16m -p \"Once upon a time\" "
                 "-o accept.json",
                 "sequoia-acceptance -m tiny-16m -s spec.draft.path=tiny-2m -f "
                 "recipes/demo/lighthouse-logbook.txt "
                 "-s sampling.temperature=0.6 -n 500",
                 "sequoia-tree-search --accept accept.json -s tree.sizes=[16] -o tree.json"},
    .flags = tools::prompt_flags(),
    .positional = "prompt",
    .upgrade = speculate::upgrade_pair,
    .formats = {"json", "jsonl", "text", "md", "csv"}};

}  // namespace

int main(int argc, char** argv) {
  return cli::run_tool<tools::AcceptanceVectorTool>(kInfo, argc, argv);
}
