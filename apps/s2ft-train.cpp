// s2ft-train: fine-tunes a model on instructions, chats or text.
#include "cli/main_wrapper.h"
#include "tools/s2ft_train.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "s2ft-train",
    .purpose = "Fine-tune a model with S2FT, LoRA, DoRA, SpFT or full training",
    .kind = "train",
    .examples = {"s2ft-train -r s2ft/tiny-16m --data train.jsonl -o run",
                 "s2ft-train -m tiny-16m --data recipes/demo/lighthouse-logbook.txt --dry-run",
                 "s2ft-train -r s2ft/tiny-16m --data train.jsonl --show-samples 3",
                 "s2ft-train -r s2ft/llama3-8b-math -m Llama-3.1-8B --data math_10k.json "
                 "--show-samples 100 --format jsonl"},
    .flags =
        {{.names = "--data",
          .value = "FILE",
          .text = "JSON array or JSON lines of records, or a plain text file",
          .key = "data.path"},
         {.names = "--method", .value = "NAME", .text = "training method", .key = "train.method"},
         {.names = "--lr", .value = "RATE", .text = "learning rate", .key = "train.optimizer.lr"},
         {.names = "--epochs",
          .value = "N",
          .text = "number of passes over the data",
          .key = "train.epochs"},
         {.names = "--lora-rank",
          .value = "K",
          .text = "rank of the factors of LoRA and DoRA",
          .key = "train.lora.rank"},
         {.names = "--show-samples",
          .value = "N",
          .text = "show the first N training samples (text, ids and supervised parts) and exit",
          .fallback = "none"},
         {.names = "--resume",
          .value = "",
          .text = "continue the run in the folder from its last checkpoint"}},
    .formats = {"text", "json", "jsonl"},
    .keeps_folder = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::S2ftTrain>(kInfo, argc, argv); }
