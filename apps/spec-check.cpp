// spec-check: whether speculation writes what the target alone would write, on this machine.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/prompts/prompt_flags.h"
#include "tools/spec_check.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "spec-check",
    .purpose =
        "Check that speculative decoding is lossless, by greedy texts and output distributions",
    .kind = "generate",
    .examples =
        {"spec-check -r sequoia/tiny-16m -s model.compute=f32",
         "spec-check -r sequoia/tiny-16m -s eval.temperatures=[0.8] -s sampling.top_p=0.9 --json",
         "spec-check -r triforce/tiny-16m", "spec-check -m tiny-16m -s spec.draft=ngram -n 64",
         "spec-check -r sequoia/tiny-16m --dry-run"},
    .flags = tools::prompt_flags(),
    .positional = "prompt",
    .upgrade = speculate::upgrade_spec,
    .formats = {"text", "md", "csv", "json", "jsonl"}};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::SpecCheck>(kInfo, argc, argv); }
