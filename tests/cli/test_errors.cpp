#include <doctest/doctest.h>

#include "base/bound_threads.h"
#include "base/cpu_features.h"
#include "base/parallel.h"
#include "cli/probe.h"
#include "tensor/cuda.h"

using namespace tandem;
using namespace tandem::testing;

namespace {

struct Case {
  std::vector<std::string> arguments;
  int status;
  std::string err;
};

}  // namespace

TEST_SUITE("cli/errors") {
  TEST_CASE("each class has its status and text, and prints no result") {
    std::vector<Case> cases = {
        {{"--treads", "3"}, 2, "--treads: unknown flag\n  hint: did you mean '--threads'?\n"},
        {{"--xyzzy=3"}, 2, "--xyzzy: unknown flag\n  hint: --help lists all flags\n"},
        {{"--thread", "3"}, 2, "--thread: unknown flag\n  hint: did you mean '--threads'?\n"},
        {{"word"},
         2,
         "'word': unexpected argument\n  hint: a value follows its flag; put text with spaces in "
         "quotes\n"},
        {{"--seed"}, 2, "--seed: needs a value\n  hint: --help shows the form of each flag\n"},
        {{"--format", "xml"}, 2, "--format: expected one of text, jsonl, found 'xml'\n"},
        {{"--color", "blue"}, 2, "--color: expected one of auto, always, never, found 'blue'\n"},
        {{"-s", "seed"},
         2,
         "--set #1: expected KEY=VALUE, found 'seed'\n  hint: for example --set run.seed=1\n"},
        {{"--overwrite=no"},
         2,
         "--overwrite: takes no value, found 'no'\n  hint: leave it out to switch it off, or write "
         "=true or =false\n"},
        {{"--wait=3"},
         2,
         "--wait: takes no value, found '3'\n  hint: leave it out to switch it off, or write =true "
         "or =false\n"},
        {{"--sweep", "output.path=a,b"},
         3,
         "--sweep #1: output.path cannot be swept: all points of a sweep share one output\n  hint: "
         "each record names its point; for separate files, run the tool once for each\n"},
        {{"--overwrite", "--append"},
         2,
         "--overwrite: cannot be combined with --append or --resume\n"},
        {{"--seed", "x"},
         3,
         "--seed: run.seed: expected an integer, found 'x'\n"
         "  hint: seed is: seed of every random draw\n"},
        {{"-s", "cache.kinds=full"},
         3,
         "--set #1: unknown key 'kinds' in section 'cache'\n"
         "  hint: did you mean 'kind'?  valid keys: kind, sinks\n"},
        {{"-s", "cache.kind=lsh", "-s", "run.batch=0"},
         3,
         "--set #1: cache.kind: expected one of full, streaming, found 'lsh'\n"
         "  hint: kind is: which keys attention reads\n"
         "cli-probe: error: --set #2: run.batch: 0 is out of range, expected >= 1 sequences\n"
         "  hint: batch is: sequences that run together\n"},
        {{"--sweep", "run.seed=8-1"}, 3, "--sweep #1: range '8-1' ends before it begins\n"},
        {{"-s", "model.state=none.bin"},
         4,
         "--set #1: file 'none.bin' not found\n  hint: check the path in model.state\n"},
        {{"--fail", "memory"},
         5,
         "not enough memory\n"
         "  hint: --dry-run shows the memory needed; lower run.context or run.batch\n"},
        {{"--fail", "numeric"}, 7, "layer 3: non-finite value\n"},
        {{"--fail", "bug"},
         1,
         "internal: list index out of range\n"
         "  hint: this is a bug: please report it with the output of cli-probe --version -v\n"},
    };
    if (tandem::cuda::device_count() == 0)
      cases.push_back(
          {{"--device", "cuda:0"},
           6,
           "--device: " + tandem::cuda::why_none() + "\n  hint: use --device cpu" +
               (tandem::cuda::built_in() ? "\n" : ", or build with a CUDA compiler\n")});
    for (const Case& test : cases) {
      const Outcome run = probe_model(test.arguments);
      CHECK(run.status == test.status);
      CHECK(run.err == "cli-probe: error: " + test.err);
      CHECK(run.out.empty());
    }
  }

  TEST_CASE("a failed check asks for a report") {
    const Outcome run = probe_model({"--fail", "check"});
    CHECK(run.status == 1);
    CHECK(run.err.find("check 'how.empty()' failed: always false here\n  hint: this is a bug") !=
          std::string::npos);
  }

  TEST_CASE("recipe files: kind, position, missing model") {
    const Outcome kind = probe({"-r", "-"}, {.input = "kind: train\n"});
    CHECK(kind.status == 3);
    CHECK(kind.err ==
          "cli-probe: error: <stdin>:1:7: expected a recipe of kind 'probe', found 'train'\n"
          "  hint: give the recipe to the tool it was written for\n");
    const Outcome model = probe({"-r", "-"}, {.input = "run: {seed: 1}\n"});
    CHECK(model.status == 3);
    CHECK(model.err.find("cli-probe: error: recipe: model.path is not set\n") == 0);
    const Outcome lost = probe({"-m", "tiny-3m"});
    CHECK(lost.status == 4);
    CHECK(lost.err.find("cli-probe: error: --model: model 'tiny-3m' not found\n"
                        "  hint: did you mean 'tiny-2m'?  looked in the working directory, ") == 0);
    const Outcome hub = probe({"-m", "meta-llama/Llama-3.1-8B"});
    CHECK(hub.status == 4);
    CHECK(hub.err ==
          "cli-probe: error: --model: model 'meta-llama/Llama-3.1-8B' not found\n  hint: tandem "
          "does not download models: run hf download meta-llama/Llama-3.1-8B --local-dir "
          "Llama-3.1-8B, then -m Llama-3.1-8B\n");
    CHECK(has(probe({"-m", "./no/model"}).err, "  hint: check the path in model.path\n"));
    CHECK(probe({"-r", "no/such"}).status == 3);
  }

  TEST_CASE("TANDEM_GPU_ISA is checked, and may be forced to portable anywhere") {
    const Outcome isa = probe_model({}, {.variables = {{"TANDEM_GPU_ISA", "volta"}}});
    CHECK(isa.status == 2);
    CHECK(isa.err ==
          "cli-probe: error: TANDEM_GPU_ISA: unknown instruction set 'volta'\n"
          "  hint: one of: portable, hopper\n");
    CHECK(probe_model({}, {.variables = {{"TANDEM_GPU_ISA", "portable"}}}).status == 0);
    // Whatever GPU the machine has, this process sees none.
    const Outcome none = probe_model(
        {}, {.variables = {{"TANDEM_GPU_ISA", "hopper"}, {"CUDA_VISIBLE_DEVICES", ""}}});
    CHECK(none.status == 6);
    CHECK(none.err.find("cli-probe: error: TANDEM_GPU_ISA: 'hopper' is not available: ") == 0);
    CHECK(none.err.find("  hint: unset TANDEM_GPU_ISA\n") != std::string::npos);
  }

  TEST_CASE("TANDEM_ISA and TANDEM_LOG are checked") {
    const Outcome isa = probe_model({}, {.variables = {{"TANDEM_ISA", "sse9"}}});
    CHECK(isa.status == 2);
    CHECK(isa.err ==
          "cli-probe: error: TANDEM_ISA: unknown instruction set 'sse9'\n"
          "  hint: one of: scalar, avx2, avx512, avx512_bf16, amx\n");
    CHECK(probe_model({}, {.variables = {{"TANDEM_LOG", "loud"}}}).status == 2);
  }

  TEST_CASE("variables of OpenMP threads are honoured, or the warning says why not") {
    struct Given {
      const char *name, *value, *warning;
    };
    const std::string many = std::to_string(usable_cores() + 1);
    for (const Given& g :
         {Given{"OMP_NUM_THREADS", "1", ""},
          {"OMP_NUM_THREADS", "many",
           "OMP_NUM_THREADS: expected a number of threads, found 'many'"},
          {"OMP_NUM_THREADS", "0", "OMP_NUM_THREADS: expected a number of threads, found '0'"},
          {"OMP_NUM_THREADS", many.c_str(), "this process may use "},
          {"OMP_WAIT_POLICY", "PASSIVE", ""},
          {"OMP_WAIT_POLICY", "lazy", "OMP_WAIT_POLICY: expected active or passive, found 'lazy'"},
          {"OMP_PROC_BIND", "false", ""},
          {"OMP_PLACES", "cores", "OMP_PLACES: OpenMP binds this process and its threads to "}}) {
      const Outcome run = probe_model({}, {.variables = {{g.name, g.value}}});
      CAPTURE(run.err);
      CHECK(run.status == 0);
      CHECK((run.err.find("cli-probe: warning: OMP_") != std::string::npos) == (*g.warning != 0));
      CHECK(run.err.find(g.warning) != std::string::npos);
    }
    const auto threads = [](const std::string& launcher, const Launch& launch = {}) {
      const Outcome run = launcher.empty()
                              ? probe({"-V", "-v"}, launch)
                              : run_shell(launcher + " " + program("cli_probe") + " -V -v 2>&1");
      return run.out.substr(0, run.out.find("\nisa"));
    };
    CHECK(threads("", {.variables = {{"OMP_NUM_THREADS", "1"}}}).ends_with(" cores, 1 threads"));
    CHECK(threads("env -u OMP_NUM_THREADS taskset -c " + std::to_string(core_cpus()[0]))
              .ends_with(", 1 usable cores, 1 threads"));
  }

  TEST_CASE("test programs check TANDEM_ISA as the tools do") {
    const Outcome isa = run_process(
        "/proc/self/exe", {.arguments = {"--no-run"}, .variables = {{"TANDEM_ISA", "sse9"}}});
    CHECK(isa.status == 2);
    CHECK(isa.err ==
          "exe: error: TANDEM_ISA: unknown instruction set 'sse9'\n"
          "  hint: one of: scalar, avx2, avx512, avx512_bf16, amx\n");
    CHECK(run_process("/proc/self/exe",
                      {.arguments = {"--no-run"}, .variables = {{"TANDEM_ISA", "scalar"}}})
              .status == 0);
  }

  TEST_CASE("--lower-to of test programs: a level below the one in use, or a reason to skip") {
    const auto run = [](const std::string& in_use, const std::string& name) {
      return run_process("/proc/self/exe", {.arguments = {"--no-run", "--lower-to=" + name},
                                            .variables = {{"TANDEM_ISA", in_use}}});
    };
    CHECK(run("avx2", "scalar").status == 0);
    const Outcome own = run("avx2", "avx2"), above = run("avx2", "avx512");
    CHECK(own.status == 77);
    CHECK(own.err == "skipped: avx2 is this run's own level, at which every test runs anyway\n");
    CHECK(above.status == 77);
    CHECK(above.err == "skipped: avx512 is above this run's own level, avx2\n");
    CHECK(run("avx2", "sse9").status == 2);
  }

  TEST_CASE("a TANDEM_ISA that this CPU lacks, in tools and test programs") {
    if (isa_detected() == Isa::amx) return;  // there is none; test_base asks a lesser CPU for more
    const Launch more = {.arguments = {"--no-run"}, .variables = {{"TANDEM_ISA", "amx"}}};
    const std::string text = fmt::format(
        "error: TANDEM_ISA: 'amx' is not supported by this CPU ({}), which has {}\n  hint: unset "
        "TANDEM_ISA or lower it\n",
        cpu_model_name(), isa_name(isa_detected()));
    const Outcome tool = probe_model({}, more), program = run_process("/proc/self/exe", more);
    CHECK(tool.status == 6);
    CHECK(tool.err == "cli-probe: " + text);
    CHECK(program.status == 6);
    CHECK(program.err == "exe: " + text);
  }
}
