// sequoia-generate: writes text of a model several tokens at a time, with a small model that
// proposes trees.
#include "cli/main_wrapper.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/sequoia_generate.h"

namespace {

using namespace tandem;

std::vector<cli::Flag> flags() {
  std::vector<cli::Flag> all = tools::prompt_flags();
  all.push_back({.names = "--fastest",
                 .value = "",
                 .text = "try plain decoding and several drafts on the prompt and use the fastest",
                 .key = "spec.fastest"});
  return all;
}

const cli::ToolInfo kInfo{
    .name = "sequoia-generate",
    .purpose = "Generate text with speculative decoding: token trees, prompt lookup or self-drafts",
    .kind = "generate",
    .examples = {"sequoia-generate -r sequoia/tiny-16m -p \"Once upon a time\" -n 40",
                 "sequoia-generate -r sequoia/tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                 "-s sampling.temperature=0.6 --format jsonl",
                 "sequoia-generate -m tiny-16m -s draft.path=tiny-2m -s tree.path=tree.json -p "
                 "\"The lamp\"",
                 "sequoia-generate -m tiny-16m -s draft.path=tiny-2m -s tree.path=auto -p "
                 "\"The lamp\"",
                 "sequoia-generate -m tiny-16m -s spec.draft=self -s draft.cache.kind=streaming -p "
                 "\"The lamp\"",
                 "sequoia-generate -m tiny-16m --fastest -p \"tick tock tick tock\" -n 60",
                 "sequoia-generate -r sequoia/tiny-16m --dry-run"},
    .flags = flags(),
    .positional = "prompt",
    .formats = {"text", "jsonl", "results"}};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::SequoiaGenerate>(kInfo, argc, argv); }
