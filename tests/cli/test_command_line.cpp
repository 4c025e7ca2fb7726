#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "cli/probe.h"

using namespace tandem::testing;

namespace {

size_t widest_line(const std::string& text) {
  size_t widest = 0, start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    widest = std::max(widest, end - start);
    start = end + 1;
  }
  return widest;
}

}  // namespace

TEST_SUITE("cli/command_line") {
  TEST_CASE("help goes to stdout, fits 80 columns and is fast") {
    for (const auto& arguments : {std::vector<std::string>{"--help"}, {"-h"}, {"--bogus", "-h"}}) {
      const Outcome run = probe(arguments);
      CHECK(run.status == 0);
      CHECK(run.err.empty());
      CHECK(run.out == probe({"--help"}).out);
      CHECK(widest_line(run.out) <= 80);
    }
    const std::string help = probe({"--help"}).out;
    for (const char* part :
         {"cli-probe: exercises the command line\n\nusage: cli-probe [flags]\n\nexamples:\n",
          "  -n, --lines N    lines to print [default 1]\n",
          "      --seed N                random seed [run.seed; default 0]\n",
          "  -m, --model PATH            model folder, .gguf file, known name, or\n"
          "                              synthetic:NAME [model.path; required]\n",
          "  cache   what attention reads\n", "exit status:\n", "files and environment:\n",
          "TANDEM_CACHE_DIR"})
      CHECK_MESSAGE(help.find(part) != std::string::npos, part);
    double best = 1;  // of a tool that has all: what is loaded for GPUs waits until one is used
    for (int i = 0; i < 5; ++i)
      best = std::min(best,
                      run_process(program("pig-generate"), {.arguments = {"--help"}}).cpu_seconds);
    CHECK(best < 0.05);
  }

  TEST_CASE("the tools' help fits 80 columns, and the recipes of its examples are there") {
    for (const char* tool :
         {"kernel-bench", "magicdec-acceptance", "magicdec-bench", "pig-bench", "pig-eval",
          "pig-generate", "s2ft-adapter", "s2ft-train", "sequoia-acceptance", "sequoia-bench",
          "sequoia-generate", "sequoia-tree-search", "sirius-generate", "spec-check",
          "triforce-generate"}) {
      const std::string help = run_process(program(tool), {.arguments = {"--help"}}).out;
      CAPTURE(tool);
      CHECK(widest_line(help) <= 80);
      CHECK(widest_line(run_process(program(tool), {}).err) <= 80);  // short help
      const bool keeps_records = has(tool, "bench") || has(tool, "magicdec");
      CHECK(has(help, "-o, --output PATH           file of records") == keeps_records);
      CHECK(has(help, "-o, --output PATH           log of judged cases") == has(tool, "eval"));
      std::istringstream keys(run_process(program(tool), {.arguments = {"--help-recipe"}}).out);
      for (std::string line; std::getline(keys, line);) CHECK(std::ranges::count(line, '\t') == 4);
      const size_t begin = help.find("examples:\n"), end = help.find("\n\n", begin);
      REQUIRE(end != std::string::npos);
      std::istringstream words(help.substr(begin, end - begin));
      std::string before;
      for (std::string word; words >> word; before = word)
        if (before == "-r")
          CHECK_MESSAGE(
              std::filesystem::exists(tandem::test::source_dir() / "recipes" / (word + ".yaml")),
              word);
    }
  }

  TEST_CASE("tools and recipes keep their names") {
    const std::filesystem::path source = tandem::test::source_dir();
    std::ifstream file(source / "tests/data/names.txt");
    std::set<std::string> recipes, tools;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("#")) continue;
      std::istringstream words(line);
      std::string tool, recipe;
      words >> tool >> recipe;
      std::vector<std::string> arguments = {recipe.empty() ? "--version" : "--print-recipe"};
      if (!recipe.empty()) arguments.insert(arguments.end(), {"-r", recipe});
      for (std::string word; words >> word;) arguments.push_back(word);
      const Outcome run = run_process(
          program(tool.c_str()),
          {.arguments = arguments, .variables = {{"TANDEM_RECIPE_PATH", source / "recipes"}}});
      CHECK_MESSAGE(run.status == 0, line, ": ", run.err);
      tools.insert(tool);
      recipes.insert(recipe);
    }
    CHECK(tools.size() >= 15);
    // A new recipe needs a line, too.
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source / "recipes")) {
      const std::filesystem::path name =
          std::filesystem::relative(entry.path(), source / "recipes").replace_extension();
      if (entry.path().extension() == ".yaml" && !name.string().starts_with("common/"))
        CHECK_MESSAGE(recipes.contains(name.string()), name.string());
    }
  }

  TEST_CASE("a bare call prints short help and fails") {
    const Outcome run = probe({});
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    CHECK(run.err.find("cli-probe --help shows all flags\n") != std::string::npos);
  }

  TEST_CASE("version") {
    const Outcome line = probe({"--version"});
    CHECK(line.status == 0);
    CHECK(line.out.find("cli-probe (tandem ") == 0);
    CHECK(std::count(line.out.begin(), line.out.end(), '\n') == 1);
    const Outcome report = probe({"-V", "-v"}, {.variables = {{"TANDEM_ISA", "scalar"}}});
    CHECK(report.out.find("isa       scalar in use, ") != std::string::npos);
    CHECK(report.out.find("env       TANDEM_ISA=scalar\n") != std::string::npos);
    CHECK(report.out.find("build     ") != std::string::npos);
  }

  TEST_CASE("the schema, whole or by section") {
    const Outcome all = probe({"--help-recipe"});
    CHECK(all.status == 0);
    CHECK(all.out.find("\nrun.seed\t") != std::string::npos);
    const Outcome section = probe({"--help-recipe=cache"});
    CHECK(section.out ==
          "key\ttype\tdefault\trange\tmeaning\n"
          "cache.kind\tfull|streaming\tfull\t\twhich keys attention reads\n"
          "cache.sinks\tcount\t4\t>= 0 tokens\tfirst tokens that are always read\n");
    CHECK(probe({"--help=cache"}).out == section.out);
    for (const auto& form :
         {std::vector<std::string>{"--format", "json"}, {"--format=json"}, {"--json"}}) {
      std::vector<std::string> call = {"--help-recipe=cache"};
      call.insert(form.size() == 2 ? call.end() : call.begin(), form.begin(), form.end());
      const auto json = nlohmann::ordered_json::parse(probe(call).out);
      REQUIRE(json.size() == 2);
      CHECK(json[1].dump() ==
            R"({"key":"cache.sinks","type":"count","default":4,"range":">= 0 tokens",)"
            R"("meaning":"first tokens that are always read"})");
    }
    const auto model = nlohmann::json::parse(probe({"--help-recipe=model", "--json"}).out);
    CHECK(model[0]["key"] == "model.path");
    CHECK(model[0]["required"] == true);
    CHECK_FALSE(model[0].contains("default"));
    check_refused(probe({"--help-recipe", "--format", "csv"}), 2,
                  "--format: expected text or json with --help-recipe, found 'csv'");
    for (const char* flag : {"--help-recipe=cash", "--help=cash"}) {
      const Outcome wrong = probe({flag});
      CHECK(wrong.status == 2);
      CHECK(wrong.err ==
            "cli-probe: error: --help-recipe: cli-probe reads no section 'cash'\n"
            "  hint: its sections: model, run, cache, output, stop\n");
    }
  }

  TEST_CASE("of two settings for one key the later wins, flags and --set alike") {
    CHECK(probe_model({"--seed", "1", "-s", "run.seed=2"}).out == "line 0 seed 2 stop []\n");
    CHECK(probe_model({"-s", "run.seed=2", "--seed=1"}).out == "line 0 seed 1 stop []\n");
    CHECK(probe_model({"--seed", "1", "--seed", "3"}).out == "line 0 seed 3 stop []\n");
    CHECK(probe_model({"-n2"}).out == "line 0 seed 0 stop []\nline 1 seed 0 stop []\n");
  }

  TEST_CASE("flag values are literal, lists add up, empty values count") {
    CHECK(probe_model({"--stop", "[a", "--stop=x: y"}).out == "line 0 seed 0 stop [[a|x: y]\n");
    CHECK(probe_model({"--stop=", "-n", "1"}).out == "line 0 seed 0 stop []\n");
    CHECK(probe_model({"-s", "stop=[a, b]"}).out == "line 0 seed 0 stop [a|b]\n");
  }

  TEST_CASE("recipes come from files, names and stdin; the later file wins") {
    const TemporaryFolder folder;
    std::ofstream(folder / "a.yaml") << "kind: probe\nmodel: {path: tiny-2m}\nrun: {seed: 1}\n";
    std::ofstream(folder / "b.yaml") << "run: {seed: 2}\n";
    const std::string a = (folder / "a.yaml").string(), b = (folder / "b.yaml").string();
    CHECK(probe({"-r", a, "-r", b}).out == "line 0 seed 2 stop []\n");
    CHECK(probe({"-r", b, "-r", a}).out == "line 0 seed 1 stop []\n");
    CHECK(probe({"-r", "a"},
                {.variables = {{"TANDEM_RECIPE_PATH", "/none:" + folder.path().string()}}})
              .out == "line 0 seed 1 stop []\n");
    CHECK(probe({"-r", "-"}, {.input = "model: {path: tiny-2m}\nrun: {seed: 7}\n"}).out ==
          "line 0 seed 7 stop []\n");
  }

  TEST_CASE("--print-recipe piped into -r - is a fixed point") {
    const std::vector<std::string> flags = {"-s",      "run.context=96Ki", "--stop",        "a: b",
                                            "--sweep", "run.seed=1-8*2",   "--print-recipe"};
    const Outcome first = probe_model(flags);
    CHECK(first.status == 0);
    CHECK(without_origins(first.out).find("\n  context: 98304\n") != std::string::npos);
    CHECK(first.out.find("# --set #1\n") != std::string::npos);
    const Outcome second = probe({"-r", "-", "--print-recipe"}, {.input = first.out});
    CHECK(second.status == 0);
    CHECK(without_origins(second.out) == without_origins(first.out));
  }

  TEST_CASE("--print-recipe prints a template where nothing is set") {
    const Outcome empty = probe({"--print-recipe"});
    CHECK(empty.status == 0);
    CHECK(has(empty.out, "\nmodel:\n  path:  "));
    CHECK(has(empty.out, "# required\n"));
    const Outcome again = probe({"-r", "-", "-m", "tiny-2m"}, {.input = empty.out});
    CHECK(again.out == "line 0 seed 0 stop []\n");
    const Outcome unfilled = probe({"-r", "-"}, {.input = empty.out});
    CHECK(unfilled.status == 3);
    CHECK(has(unfilled.err, "model.path is not set\n"));
    const Outcome diff = probe({"--print-recipe=diff", "-s", "run.batch=2"});
    CHECK(has(diff.out, "\n  batch: 2"));
    CHECK(has(diff.out, "\n  path:  "));  // required
    CHECK(!has(diff.out, "# default"));
    const Outcome set = probe({"-m", "tiny-2m", "-s", "run.batch=2", "--print-recipe=diff"});
    const Outcome whole = probe({"-m", "tiny-2m", "-s", "run.batch=2", "--print-recipe"});
    CHECK(without_origins(probe({"-r", "-", "--print-recipe"}, {.input = set.out}).out) ==
          without_origins(whole.out));
    const Outcome wrong = probe({"--print-recipe=dif"});
    CHECK(wrong.status == 2);
    CHECK(has(wrong.err, "--print-recipe: expected no value or 'diff', found 'dif'"));
    CHECK(probe({"--print-recipe", "-s", "run.batch=0"}).status == 3);
  }

  TEST_CASE("--check is silent, --sweep runs every point") {
    const Outcome check = probe_model({"--check"});
    CHECK(check.status == 0);
    CHECK(check.out + check.err == "");
    CHECK(probe_model({"--sweep", "run.seed=1-4*2"}).out ==
          "line 0 seed 1 stop []\nline 0 seed 2 stop []\nline 0 seed 4 stop []\n");
  }

  TEST_CASE("a list for one value is a sweep, and so is a key of section sweep") {
    const std::string three =
        "line 0 seed 1 stop []\nline 0 seed 2 stop []\nline 0 seed 4 stop []\n";
    CHECK(probe_model({"-s", "run.seed=[1,2,4]"}).out == three);
    CHECK(probe_model({"-s", "run.seed=[1-4*2]"}).out == three);
    CHECK(probe_model({"-s", "sweep.run.seed=[1,2,4]"}).out == three);
    CHECK(probe({"-r", "-"}, {.input = "model: {path: tiny-2m}\nrun: {seed: [1, 2, 4]}\n"}).out ==
          three);
    CHECK(probe_model({"-s", "run.seed=[1,2]", "-s", "run.seed=3"}).out ==
          "line 0 seed 3 stop []\n");
    CHECK(probe_model({"-s", "run.seed=[5,6]", "--sweep", "run.seed=1,2,4"}).out == three);
    CHECK(probe_model({"-s", "stop=[a, b]"}).out == "line 0 seed 0 stop [a|b]\n");
    CHECK(probe_model({"-s", "stop=."}).out == "line 0 seed 0 stop [.]\n");
    check_refused(probe_model({"-s", "run.seed=[]"}), 3,
                  "--set #1: sweep of 'run.seed' has no values\n");
    check_refused(probe_model({"-s", "run.seed=[1,x]"}), 3,
                  "--set #1: run.seed: expected an integer, found 'x'\n");
    check_refused(probe_model({"-s", "output.path=[a,b]"}), 3,
                  "output.path cannot be swept: all points of a sweep share one output\n");
    // A tool that runs one point takes one value.
    check_refused(run_process(program("pig-generate"),
                              {.arguments = {"-m", "tiny-2m", "-p", "a", "-s", "run.seed=[1,2]"}}),
                  3, "--set #1: run.seed: expected an integer, found a list\n");
  }

  TEST_CASE("--shard runs every N-th point") {
    const auto shard = [](const std::string& which) {
      return probe_model({"--sweep", "run.seed=1-5", "--shard", which});
    };
    CHECK(shard("1/2").out ==
          "line 0 seed 1 stop []\nline 0 seed 3 stop []\nline 0 seed 5 stop []\n");
    CHECK(shard("2/2").out == "line 0 seed 2 stop []\nline 0 seed 4 stop []\n");
    for (const char* wrong : {"0/2", "3/2", "2", "/2", "1/", "a/b", "1/2/3", "-1/2"}) {
      const Outcome run = shard(wrong);
      CHECK(run.status == 2);
      CHECK(run.err.find("--shard: expected I/N with I from 1 to N, found") != std::string::npos);
    }
    const Outcome none = shard("6/6");
    CHECK(none.status == 2);
    CHECK(none.err.find("--shard: part 6 of 6 is empty: the sweep has only 5 points") !=
          std::string::npos);
  }
}
