// pig-generate: reads prompts or a document and writes text, one or many sequences at once.
#include "cli/main_wrapper.h"
#include "line_editor.h"
#include "tools/pig_generate.h"
#include "tools/prompts/prompt_flags.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "pig-generate",
    .purpose = "Generate text from a prompt or a long document",
    .kind = "generate",
    .examples = {"pig-generate -m tiny-16m -p \"Once upon a time\" -n 40",
                 "pig-generate -m tiny-16m -p \"Why is the sky blue?\" --chat",
                 "pig-generate -m tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                 "--questions recipes/demo/questions.txt --stop $'\\n' -n 32",
                 "cat recipes/demo/lighthouse-logbook.txt | pig-generate -r pig/tiny-16m -f - "
                 "--format jsonl",
                 "pig-generate -r pig/llama3-8b-96k -m synthetic:llama-3.1-8b --dry-run"},
    .flags = tools::prompt_flags(),
    .positional = "prompt",
    .formats = {"text", "jsonl", "results"},
    .line_reader = line_editor};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::PigGenerate>(kInfo, argc, argv); }
