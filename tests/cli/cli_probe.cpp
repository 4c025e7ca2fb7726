// A small tool with every feature of main_wrapper, for the command-line tests.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/check.h"
#include "cli/main_wrapper.h"
#include "recipe/fields_of.h"
#include "recipe/sections.h"

namespace {

using namespace tandem;

// Sections of its own, so that new keys of real tools do not change what the tests expect.
struct ProbeRun {
  std::string device = "auto";
  int threads = 0;
  int64_t seed = 0;
  recipe::TokenCount context{0};
  int batch = 1;

  template <class V>
  void fields(V& v) {
    v("device", device, "auto, cpu or cuda");
    v("threads", threads, recipe::at_least(0), "CPU threads; 0 = physical cores");
    v("seed", seed, recipe::at_least(0), "seed of every random draw");
    v("context", context, recipe::at_least(0).unit("tokens"), "longest sequence");
    v("batch", batch, recipe::at_least(1).unit("sequences"), "sequences that run together");
  }
};

enum class ProbeKind : uint8_t { full, streaming };
constexpr std::array<std::string_view, 2> enum_names(ProbeKind) { return {"full", "streaming"}; }

struct ProbeCache {
  ProbeKind kind = ProbeKind::full;
  recipe::TokenCount sinks{4};

  template <class V>
  void fields(V& v) {
    v("kind", kind, "which keys attention reads");
    v("sinks", sinks, recipe::at_least(0).unit("tokens"), "first tokens that are always read");
  }
};

struct ProbeRecipe {
  recipe::Model model;
  ProbeRun run;
  ProbeCache cache;
  recipe::Output output;
  std::vector<std::string> stop;

  template <class V>
  void fields(V& v) {
    v("model", model, "the model");
    v("run", run, "device, threads, seed, sizes");
    v("cache", cache, "what attention reads");
    v("output", output, "where results go");
    v("stop", stop, "texts that end generation");
  }
};

const cli::ToolInfo kInfo = {
    .name = "cli-probe",
    .purpose = "exercises the command line",
    .kind = "probe",
    .examples = {"cli-probe -m tiny-2m --lines 3", "cli-probe -m tiny-2m --print-recipe"},
    .flags = {{"-n,--lines", "N", "lines to print", "", "1"},
              {"--stop", "TEXT", "text that ends generation; repeatable", "stop"},
              {"--poll", "", "wait for a signal, polling"},
              {"--hang", "", "wait for a second signal"},
              {"--fail", "HOW", "throw: memory, bug, check, numeric, line"}},
    .schema = recipe::schema_of<ProbeRecipe>,
    .formats = {"text", "jsonl"},
    .sweeps = true,
    .appends = true};

void fail(const std::string& how) {
  if (how == "memory") throw std::bad_alloc();
  if (how == "bug") throw std::logic_error("list index out of range");
  if (how == "check") TANDEM_CHECK(how.empty(), "always false here");
  throw Error(ErrorKind::numeric, "layer 3", "non-finite value");
}

int probe(cli::Context& cx) {
  const auto points = cx.load_points<ProbeRecipe>();
  if (cx.value("fail") == "line") {  // in the middle of one
    cx.out.write("half");
    cx.warn("between");
    cx.out.write("other half");
  }
  if (cx.is_set("fail")) fail(*cx.value("fail"));
  cli::ResultFile result(points[0].recipe.output.path, cx.file_mode(), cx.out);
  const int n = std::stoi(cx.value("lines").value_or("1"));
  for (const auto& point : points)
    for (int i = 0; i < n; ++i)
      result.write(fmt::format("line {} seed {} stop [{}]\n", i, point.recipe.run.seed,
                               fmt::join(point.recipe.stop, "|")));
  if (cx.is_set("poll")) {
    cx.note("waiting");
    cli::Progress progress(cx.terminal, "waiting", 100, "ticks");
    for (int i = 0; cli::interrupted() == 0; ++i) {
      progress.update(i % 100);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  if (cx.is_set("hang")) {
    cx.note("waiting");
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  result.commit();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return tandem::cli::main_wrapper(kInfo, argc, argv, probe); }
