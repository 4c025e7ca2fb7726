// pig-generate: reads prompts or a document and writes text, one or many sequences at once.
#include "cli/main_wrapper.h"
#include "line_editor.h"
#include "tools/generate.h"

using namespace tandem;

int main(int argc, char** argv) {
  using Tool = tools::GenerateTool<speculate::DraftKind::none>;
  return cli::run_tool<Tool>(
      tools::generator(
          {.name = "pig-generate",
           .purpose = "Generate text from a prompt or a long document",
           .examples =
               {"pig-generate -m tiny-16m -p \"Once upon a time\" -n 40",
                "pig-generate -m tiny-16m -p \"Why is the sky blue?\" --chat",
                "pig-generate -m tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                "--questions recipes/demo/questions.txt --stop $'\\n' -n 32",
                "cat recipes/demo/lighthouse-logbook.txt | pig-generate -r pig/tiny-16m -f - "
                "--format jsonl",
                "pig-generate -r pig/llama3-8b-96k -m synthetic:llama-3.1-8b --dry-run"},
           .line_reader = line_editor}),
      argc, argv);
}
