// sirius-generate: writes text of a model that drafts for itself with some of its FFN channels; all
// of it verifies.
#include "cli/main_wrapper.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/sequoia_generate.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "sirius-generate",
    .purpose = "Generate text with a self-draft that computes only some FFN neurons",
    .kind = "generate",
    .examples = {"sirius-generate -r sirius/tiny-16m -p \"The lamp was\" -n 60",
                 "sirius-generate -r sirius/tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                 "-s draft.sparse.kind=cats -s spec.gamma=7",
                 "sirius-generate -r sirius/tiny-16m -s spec.verify=match -p \"The lamp was\"",
                 "sirius-generate -r sirius/tiny-16m --dry-run"},
    .flags = tools::prompt_flags(),
    .positional = "prompt",
    .bare = {{"spec.draft", "self", "draft.path"},
             {"draft.sparse.kind", "cats"},
             {"spec.verify", "match"}},
    .formats = {"text", "jsonl", "results"}};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::SequoiaGenerate>(kInfo, argc, argv); }
