// s2ft-adapter: what runs of fine-tuning have changed: said, checked, added up, written in other
// forms.
#include "cli/main_wrapper.h"
#include "tools/s2ft_adapter.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "s2ft-adapter",
    .purpose = "Summarize, add, extract, convert and merge adapters",
    .kind = "adapter",
    .examples = {"s2ft-adapter -m tiny-16m --adapter run --verify",
                 "s2ft-adapter -m tiny-16m --adapter run --to model -o merged --verify",
                 "s2ft-adapter -m tiny-16m --to model --weights int4 -o tiny-16m-q4_0.gguf",
                 "s2ft-adapter -m tiny-16m --adapter run=0.7 --adapter other --to s2ft -o fused",
                 "s2ft-adapter -m tiny-16m --adapter run --to lora --rank 8 -o peft",
                 "s2ft-adapter -m tiny-16m --adapter run --ranks 8,16,32,64",
                 "s2ft-adapter -m tiny-16m --tuned merged --to s2ft -o taken"},
    .flags = {{.names = "--adapter",
               .value = "FOLDER[=WEIGHT]",
               .text = "run folder of s2ft-train, its adapter/ folder, or a PEFT folder, "
                       "repeatable",
               .key = "adapter.adapters"},
              {.names = "--tuned",
               .value = "FOLDER",
               .text = "tuned model in place of adapters, whose changed rows and columns become "
                       "the adapter",
               .key = "adapter.tuned"},
              {.names = "--to",
               .value = "FORM",
               .text = "form of the result: summary, s2ft (slices), lora or peft (a PEFT folder), "
                       "or model (merged into the base)",
               .key = "adapter.to"},
              {.names = "--weights",
               .value = "TYPE",
               .text = "weights for --to model: bf16, f32, int8 or int4 (compressed-tensors, or "
                       "GGUF if the name ends in .gguf)",
               .key = "output.weights"},
              {.names = "--group",
               .value = "N",
               .text = "weights that share a scale: 32, 64 or 128",
               .key = "output.group"},
              {.names = "--rank",
               .value = "K",
               .text = "rank of the factors for --to lora, 0 = the exact rank",
               .key = "adapter.rank"},
              {.names = "--ranks",
               .value = "K,K,...",
               .text = "print the loss of factors of each rank",
               .key = "adapter.ranks"},
              {.names = "--max-error",
               .value = "E",
               .text = "largest accepted relative loss for --to lora",
               .key = "adapter.max_error"},
              {.names = "--exclusive",
               .value = "",
               .text = "refuse adapters that change the same heads or channels",
               .key = "adapter.exclusive"},
              {.names = "--verify",
               .value = "",
               .text = "read the result back and compare every weight",
               .key = "adapter.verify"},
              {.names = "--force",
               .value = "",
               .text = "accept adapters of another model if their shapes fit",
               .key = "adapter.force"}},
    .formats = {"text", "md", "csv", "json", "jsonl"},
    .checks_output = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::S2ftAdapter>(kInfo, argc, argv); }
