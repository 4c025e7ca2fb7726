// sirius-generate: writes text of a model that drafts for itself with some of its FFN channels; all
// of it verifies.
#include "cli/main_wrapper.h"
#include "line_editor.h"
#include "tools/generate.h"

using namespace tandem;

int main(int argc, char** argv) {
  using Tool = tools::GenerateTool<speculate::DraftKind::model>;
  return cli::run_tool<Tool>(
      tools::generator(
          {.name = "sirius-generate",
           .purpose = "Generate text with a self-draft that computes only some FFN neurons",
           .examples =
               {"sirius-generate -r sirius/tiny-16m -p \"The lamp was\" -n 60",
                "sirius-generate -r sirius/tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                "-s spec.draft.sparse.kind=cats -s spec.shape.gamma=7",
                "sirius-generate -r sirius/tiny-16m -s spec.verify=match -p \"The lamp was\"",
                "sirius-generate -r sirius/tiny-16m --dry-run"},
           .bare = {{"spec.draft.kind", "self", {"spec.draft.path", "spec.fastest"}},
                    {"spec.draft.sparse.kind", "cats"},
                    {"spec.verify", "match"}},
           .line_reader = line_editor}),
      argc, argv);
}
