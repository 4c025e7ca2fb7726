// triforce-generate: writes text of a model by rounds within rounds: a small model proposes for the
// model with few of its keys, which proposes for the model with all of them.
#include "cli/main_wrapper.h"
#include "line_editor.h"
#include "tools/generate.h"

using namespace tandem;

int main(int argc, char** argv) {
  using Tool = tools::GenerateTool<speculate::DraftKind::model>;
  return cli::run_tool<Tool>(
      tools::generator(
          {.name = "triforce-generate",
           .purpose = "Generate text after long prompts with hierarchical speculation (TriForce)",
           .examples =
               {"triforce-generate -r triforce/tiny-16m -f recipes/demo/lighthouse-logbook.txt "
                "--questions recipes/demo/questions.txt --stop $'\\n'",
                "triforce-generate -r triforce/tiny-16m -p \"The lamp\" -s spec.draft.gamma2=8 -n "
                "40",
                "triforce-generate -r triforce/llama2-7b-128k --dry-run -s run.plan_for=h200"},
           .bare = {{"spec.draft.kind", "nested", {"spec.draft.path", "spec.fastest"}},
                    {"spec.draft.inner.kind", "ngram", {"spec.draft.inner.path"}},
                    {"spec.draft.cache.kind", "retrieval"}},
           .line_reader = line_editor}),
      argc, argv);
}
