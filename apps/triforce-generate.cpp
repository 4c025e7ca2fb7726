// triforce-generate: writes text of a model by rounds within rounds: a small model proposes for the
// model with few of its keys, which proposes for the model with all of them.
#include "cli/main_wrapper.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/sequoia_generate.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "triforce-generate",
    .purpose = "Generate text after long prompts with hierarchical speculation (TriForce)",
    .kind = "generate",
    .examples = {"triforce-generate -r triforce/tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                 "--questions recipes/demo/questions.txt --stop $'\\n'",
                 "triforce-generate -r triforce/tiny-16m -p \"The lamp\" -s spec.gamma2=8 -n 40",
                 "triforce-generate -r triforce/llama2-7b-128k --dry-run -s run.plan_for=h200"},
    .flags = tools::prompt_flags(),
    .positional = "prompt",
    .bare = {{"spec.draft", "nested", "draft.path"},
             {"spec.within", "ngram", "draft2.path"},
             {"draft.cache.kind", "retrieval"}},
    .formats = {"text", "jsonl", "results"}};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::SequoiaGenerate>(kInfo, argc, argv); }
