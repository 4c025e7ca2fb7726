#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/kept_limits.h"
#include "cli/probe.h"

using namespace tandem::testing;

namespace {

Outcome kernel_bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"-t", "1", "--family", "norm", "-s", "bench.rows=[64]", "-s",
                                     "bench.dim=256", "-s", "bench.min_time=10ms"});
  return run_process(program("kernel-bench"), {.arguments = std::move(arguments),
                                               .variables = {{"TANDEM_CACHE_DIR", kept_limits()}}});
}

}  // namespace

TEST_SUITE("cli/kernel-bench") {
  TEST_CASE("-o takes records, standard output the table") {
    const TemporaryFolder folder;
    const std::string path = (folder / "out.jsonl").string();
    const Outcome run = kernel_bench({"--format", "csv", "-o", path});
    REQUIRE(run.status == 0);
    CHECK(run.out.starts_with("tool,point,status,"));
    CHECK(has(run.out, ",kernel,shape,"));
    CHECK(has(run.out, ",cpu,1,"));  // device, threads
    std::istringstream lines(file_text(path));
    int n = 0;
    for (std::string line; std::getline(lines, line); ++n)
      CHECK(nlohmann::json::parse(line).at("tool") == "kernel-bench");
    CHECK(n == std::count(run.out.begin(), run.out.end(), '\n') - 1);
    CHECK(kernel_bench({"-o", path}).status == 2);  // exists
  }

  TEST_CASE("cases are chosen by name, and a name that no family has is told") {
    const auto plan = [](const std::string& cases) {
      return run_process(program("kernel-bench"),
                         {.arguments = {"--family", "attention", "--dry-run", "--format", "csv",
                                        "-s", "bench.cases=" + cases}});
    };
    const Outcome one = plan("[decode]");
    REQUIRE(one.status == 0);
    CHECK(std::count(one.out.begin(), one.out.end(), '\n') == 2);  // and the head of the table
    CHECK(one.out.find("\ndecode,") != std::string::npos);
    const Outcome none = plan("[decode, decod]");
    CHECK(none.status == 3);
    CHECK(none.err.find("no kernel family has a case 'decod'") != std::string::npos);
    check_refused(run_process(program("kernel-bench"), {.arguments = {"--family", "nrom"}}), 3,
                  "\n  hint: did you mean 'norm'?\n");
  }

  TEST_CASE("--limits measures again, keeps what was measured on a quiet machine, and says so") {
    const TemporaryFolder folder;
    const auto limits = [](const std::filesystem::path& cache, std::vector<std::string> flags) {
      flags.insert(flags.begin(), {"--limits", "-t", "1"});
      return run_process(
          program("kernel-bench"),
          {.arguments = std::move(flags), .variables = {{"TANDEM_CACHE_DIR", cache.string()}}});
    };
    const Outcome run = limits(folder.path(), {"--format", "jsonl"});
    REQUIRE(run.status == 0);
    const auto record = nlohmann::json::parse(run.out);
    CHECK(record["workload"]["family"] == "limits");
    CHECK(record["limits"]["mem_read_gbps"] == record["host"]["mem_read_gbps"]);
    const bool kept = record["limits"]["kept"];
    CHECK(kept == std::filesystem::exists(folder / "ceilings.json"));
    CHECK(kept != record.contains("warnings"));
    const Outcome unwritable = limits(folder.write("file", "") / "no", {});
    CHECK(unwritable.status == 0);
    CHECK(unwritable.out.find("  no: ") != std::string::npos);
    CHECK(limits(folder.path(), {"--dry-run"}).out.find("about one second") != std::string::npos);
  }

  TEST_CASE("a bare call prints short help; --all runs every kernel and no choice of them") {
    const Outcome bare = run_process(program("kernel-bench"), {});
    CHECK(bare.status == 2);
    CHECK(bare.out.empty());
    CHECK(bare.err.find("kernel-bench --help shows all flags\n") != std::string::npos);
    const auto plan = [](std::vector<std::string> flags) {
      flags.emplace_back("--dry-run");
      return run_process(program("kernel-bench"), {.arguments = std::move(flags)});
    };
    const Outcome all = plan({"--all"});
    CHECK(all.status == 0);
    CHECK(all.out == plan({"-t", "1"}).out);
    for (const char* choice : {"bench.families=[norm]", "bench.cases=[decode]"})
      check_refused(plan({"--all", "-s", choice}), 2,
                    "--all: cannot be combined with a recipe or flag");
  }

  TEST_CASE("an interruption within a case ends the run at once and leaves no file behind") {
    const TemporaryFolder folder;
    const Outcome run =
        run_process(program("kernel-bench"),
                    {.arguments = {"--family", "norm", "-t", "1", "-s", "bench.rows=[16384]", "-s",
                                   "bench.min_time=5min", "-o", (folder / "out.jsonl").string()},
                     .variables = {{"TANDEM_CACHE_DIR", kept_limits()}},
                     .signal = SIGINT,
                     .signal_at_cpu = 1});
    CHECK(run.status == 130);
    CHECK(run.cpu_seconds < 2);
    CHECK(folder.n_files() == 0);
  }
}
