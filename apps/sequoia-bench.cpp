// sequoia-bench: rounds of trees against plain decoding, measured against predicted.
#include "cli/main_wrapper.h"
#include "tools/sequoia_bench.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "sequoia-bench",
    .purpose =
        "Measure rounds of speculation over sizes and levels of trees, against plain decoding",
    .kind = "bench",
    .examples = {"sequoia-bench -r sequoia/bench-tiny-16m",
                 "sequoia-bench -r sequoia/bench-llama-2-7b-68m --device cuda -o out.jsonl",
                 "sequoia-bench -r sequoia/bench-tiny-16m -s tree.sizes=[8,16] -s "
                 "tree.levels=[3,5] --format md",
                 "sequoia-bench -r sequoia/bench-llama-2-7b-68m --device cuda --dry-run"},
    .flags = {},
    .formats = {"text", "md", "csv", "jsonl"},
    .appends = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::SequoiaBench>(kInfo, argc, argv); }
