// s2ft-adapter: what runs of fine-tuning have changed: said, checked, added up, written in other
// forms.
#include "cli/main_wrapper.h"
#include "tools/s2ft_adapter.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "s2ft-adapter",
    .purpose =
        "Say what adapters change, add them up, take one out of a tuned model, and write "
        "them as slices, as LoRA or merged",
    .kind = "adapter",
    .examples = {"s2ft-adapter -m tiny-16m --adapter run --verify",
                 "s2ft-adapter -m tiny-16m --adapter run --to model -o merged --verify",
                 "s2ft-adapter -m tiny-16m --adapter run=0.7 --adapter other --to s2ft -o fused",
                 "s2ft-adapter -m tiny-16m --adapter run --to lora --rank 8 -o peft",
                 "s2ft-adapter -m tiny-16m --adapter run --ranks 8,16,32,64",
                 "s2ft-adapter -m tiny-16m --tuned merged --to s2ft -o taken"},
    .flags = {{.names = "--adapter",
               .value = "FOLDER[=WEIGHT]",
               .text = "a run of s2ft-train, its adapter, or a folder of PEFT; repeatable",
               .key = "adapter.adapters"},
              {.names = "--tuned",
               .value = "FOLDER",
               .text = "in their place: a model whose changed rows and columns are the adapter",
               .key = "adapter.tuned"},
              {.names = "--to",
               .value = "FORM",
               .text = "summary; s2ft: slices; lora or peft: a folder of PEFT; model: merged into "
                       "the base",
               .key = "adapter.to"},
              {.names = "--rank",
               .value = "K",
               .text = "to lora: the best factors of that rank; 0 = exact ones",
               .key = "adapter.rank"},
              {.names = "--ranks",
               .value = "K,K,...",
               .text = "print what factors of each rank would lose",
               .key = "adapter.ranks"},
              {.names = "--max-error",
               .value = "E",
               .text = "to lora: refuse a rank that loses more, relative; 0 = none is too much",
               .key = "adapter.max_error"},
              {.names = "--exclusive",
               .value = "",
               .text = "refuse adapters that change the same heads or channels",
               .key = "adapter.exclusive"},
              {.names = "--verify",
               .value = "",
               .text = "read the result back, compare every weight",
               .key = "adapter.verify"},
              {.names = "--force",
               .value = "",
               .text = "take adapters of another model, if their shapes fit",
               .key = "adapter.force"}},
    .formats = {"text", "md", "csv", "json", "jsonl"},
    .checks_output = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::S2ftAdapter>(kInfo, argc, argv); }
