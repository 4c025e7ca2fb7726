// s2ft-adapter: says what a run of fine-tuning has written, checks it, merges it into its model.
#include "cli/main_wrapper.h"
#include "tools/s2ft_adapter.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "s2ft-adapter",
    .purpose = "Say what an adapter changes, check it against its model, or merge the two",
    .kind = "adapter",
    .examples = {"s2ft-adapter -m tiny-16m --adapter run",
                 "s2ft-adapter -m tiny-16m --adapter run --verify",
                 "s2ft-adapter -m tiny-16m --adapter run --to model -o merged --verify"},
    .flags = {{.names = "--adapter",
               .value = "FOLDER",
               .text = "folder of a run of s2ft-train, or of its adapter",
               .key = "adapter.path"},
              {.names = "--to",
               .value = "FORM",
               .text = "summary, or model: the base with the adapter in its weights",
               .key = "adapter.to"},
              {.names = "--verify",
               .value = "",
               .text = "compare every weight with the base's and the adapter's",
               .key = "adapter.verify"},
              {.names = "--force",
               .value = "",
               .text = "take an adapter of another model, if its shapes fit",
               .key = "adapter.force"}},
    .formats = {"text", "json"},
    .checks_output = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::S2ftAdapter>(kInfo, argc, argv); }
