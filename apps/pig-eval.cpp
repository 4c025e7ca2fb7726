// pig-eval: judges cache policies against full attention, by long-context questions and perplexity;
// and models, by sets of questions or files of them.
#include "cli/main_wrapper.h"
#include "tools/pig_eval.h"

namespace {

using namespace tandem;

const cli::ToolInfo kInfo{
    .name = "pig-eval",
    .purpose =
        "Compare attention policies with full attention on long-context tasks, perplexity, KL "
        "divergence, attention errors, question sets and your own questions",
    .kind = "eval",
    .examples =
        {"pig-eval -r pig/eval-tasks-tiny-16m -o cases.jsonl",
         "pig-eval -r pig/eval-tasks-tiny-16m -o cases.jsonl --resume --format md",
         "pig-eval -m tiny-16m --task needle1 --task vt -s eval.lengths=[4096] -s eval.cases=20",
         "pig-eval -m tiny-16m --task recipes/demo/facts.jsonl -s 'eval.policies=[{name: near, "
         "kind: streaming, recent: 16}]'",
         "pig-eval -r pig/eval-ppl-tiny-16m --data recipes/demo/lighthouse-logbook.txt",
         "pig-eval -r pig/eval-attention-tiny-16m --data recipes/demo/lighthouse-logbook.txt "
         "--format jsonl",
         "pig-eval -r s2ft/eval-sets-tiny-16m --sets LLM-Adapters/dataset -o answers.jsonl"},
    .flags = {{.names = "--task",
               .value = "NAME",
               .text = "task: needle1, needle8, kv, vt, cwe, fwe, qa, perplexity, attention, "
                       "commonsense, arithmetic or one of their sets, such as boolq. FILE.jsonl = "
                       "your own questions, lines of {\"prompt\", \"answer\"} and optionally "
                       "\"choices\". Repeatable",
               .key = "eval.tasks"},
              {.names = "--haystack",
               .value = "FILE",
               .text = "text to hide needles in",
               .key = "eval.haystack"},
              {.names = "--sets",
               .value = "FOLDER",
               .text = "folder of the LLM-Adapters question sets",
               .key = "eval.sets.path"},
              {.names = "--data",
               .value = "FILE",
               .text = "text for perplexity and attention. FILE.jsonl = questions: perplexity of "
                       "their answers",
               .key = "data.path"}},
    .formats = cli::kRecordFormats,
    .resumes = true};

}  // namespace

int main(int argc, char** argv) { return cli::run_tool<tools::PigEval>(kInfo, argc, argv); }
