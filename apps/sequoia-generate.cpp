// sequoia-generate: writes text of a model several tokens at a time, with a small model that
// proposes trees.
#include "cli/main_wrapper.h"
#include "line_editor.h"
#include "tools/generate.h"

using namespace tandem;

int main(int argc, char** argv) {
  using Tool = tools::GenerateTool<speculate::DraftKind::model>;
  return cli::run_tool<Tool>(
      tools::generator(
          {.name = "sequoia-generate",
           .purpose =
               "Generate text with speculative decoding: token trees, prompt lookup or self-drafts",
           .examples =
               {"sequoia-generate -r sequoia/tiny-16m -p \"Once upon a time\" -n 40",
                "sequoia-generate -r sequoia/tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                "-s sampling.temperature=0.6 --format jsonl",
                "sequoia-generate -m tiny-16m -s spec.draft.path=tiny-2m -s 'spec.shape={kind: "
                "tree, path: tree.json}' -p "
                "\"The lamp\"",
                "sequoia-generate -m tiny-16m -s spec.draft.path=tiny-2m -s spec.shape=auto -p "
                "\"The lamp\"",
                "sequoia-generate -m tiny-16m -s spec.draft=self -s "
                "spec.draft.cache.kind=streaming -p "
                "\"The lamp\"",
                "sequoia-generate -m tiny-16m --fastest -p \"tick tock tick tock\" -n 60",
                "sequoia-generate -r sequoia/tiny-16m --dry-run"},
           .line_reader = line_editor}),
      argc, argv);
}
