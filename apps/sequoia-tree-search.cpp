// sequoia-tree-search: the trees of draft tokens that yield most, and the size that pays on a
// machine.
#include "cli/main_wrapper.h"
#include "speculate/plan/upgrade.h"
#include "tools/sequoia_tree_search.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "sequoia-tree-search",
    .purpose = "Search for the best token trees, and for the best tree size on a machine",
    .kind = "tree-search",
    .examples =
        {"sequoia-tree-search -r sequoia/trees-reference",
         "sequoia-tree-search -r sequoia/trees-reference -s tree.sizes=[64] -o tree.json --svg "
         "tree.svg",
         "sequoia-tree-search -r sequoia/choice-contexts --format md",
         "sequoia-tree-search --measure -m tiny-16m -s spec.draft.path=tiny-2m -o timing.json",
         "sequoia-tree-search --replay rounds.bin -s tree.sizes=[16] -o replayed.json",
         "sequoia-tree-search --accept accept.json -s tree.sizes=[8,64] -s tree.max_levels=6 "
         "--json"},
    .flags = {{.names = "--measure",
               .value = "",
               .text = "time speculation steps of -m with spec.draft and write the timing table",
               .key = "timing.measure"},
              {.names = "--accept",
               .value = "FILE",
               .text = "acceptance vector, as written by sequoia-acceptance",
               .key = "accept.path"},
              {.names = "--replay",
               .value = "FILE",
               .text = "speculation steps recorded by sequoia-acceptance (accept.record), for a "
                       "search of trees for traversal",
               .key = "replay.path"},
              {.names = "--timing", .value = "FILE", .text = "timing table", .key = "timing.path"},
              {.names = "--svg",
               .value = "FILE",
               .text = "SVG file with a drawing of the tree",
               .key = "output.svg"},
              {.names = "--dot",
               .value = "FILE",
               .text = "Graphviz file of the tree",
               .key = "output.dot"}},
    .upgrade = speculate::upgrade_pair,
    .formats = {"text", "json", "md", "csv", "jsonl"},
    .sweeps = true};

}  // namespace

int main(int argc, char** argv) {
  return cli::run_tool<tools::SequoiaTreeSearch>(kInfo, argc, argv);
}
