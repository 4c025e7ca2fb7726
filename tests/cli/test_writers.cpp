// Two programs and one output.
#include <doctest/doctest.h>

#include <thread>

#include "cli/probe.h"
#include "io/writer_lock.h"

using namespace tandem;
using namespace tandem::testing;
namespace fs = std::filesystem;

namespace {

Launch bench(const std::string& path, std::vector<std::string> more = {}) {
  Launch launch;
  launch.arguments = {"-m",      "tiny-2m",
                      "-s",      "run.context=64",
                      "-s",      "bench.random_kv=true",
                      "--phase", "decode",
                      "-s",      "bench.min_runs=2",
                      "-s",      "bench.min_time=0s",
                      "-s",      "bench.new_tokens=4",
                      "--sweep", "run.batch=1,2,3",
                      "-o",      path};
  launch.arguments.insert(launch.arguments.end(), more.begin(), more.end());
  launch.variables["TANDEM_CACHE_DIR"] = tandem::test::build_dir() / "test_cache";
  return launch;
}

}  // namespace

TEST_SUITE("cli/writers") {
  TEST_CASE("a second sweep into one file is refused, waits if asked to, and repeats no point") {
    const TemporaryFolder folder;
    const std::string path = (folder / "out.jsonl").string();
    Outcome first;
    std::thread runs([&] {
      // Long enough to be found at it.
      first = run_process(program("pig-bench"), bench(path, {"-s", "bench.min_time=1s"}));
    });
    while (!fs::exists(path + ".lock")) std::this_thread::yield();
    const Outcome second = run_process(program("pig-bench"), bench(path, {"--resume"}));
    CHECK(second.status == 4);
    CHECK(second.err.find("out.jsonl: is being written by process ") != std::string::npos);
    CHECK(second.err.find("hint: add --wait to start after it") != std::string::npos);
    const Outcome third = run_process(
        program("pig-bench"), bench(path, {"-s", "bench.min_time=1s", "--resume", "--wait"}));
    runs.join();
    CHECK(first.status == 0);
    CHECK(third.status == 0);
    CHECK(third.err.find("waiting for process ") != std::string::npos);
    CHECK(json_lines(file_text(path)).size() == 3);
    CHECK_FALSE(fs::exists(path + ".lock"));
  }

  TEST_CASE("training folders and saved states have one writer, too") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& tool, std::vector<std::string> arguments,
                             const fs::path& target) {
      const io::WriterLock lock(target, {});
      Launch launch;
      launch.arguments = std::move(arguments);
      const Outcome run = run_process(program(tool), launch);
      CAPTURE(run.err);
      CHECK(run.status == 4);
      CHECK(run.err.find("is being written by process " + std::to_string(::getpid())) !=
            std::string::npos);
    };
    const fs::path state = folder / "state", run = folder / "run";
    refused("pig-generate",
            {"-m", "tiny-2m", "-p", "The lamp", "-n", "4", "-s", "output.state=" + state.string()},
            state);
    refused("s2ft-train",
            {"-r", "s2ft/tiny-16m", "-s",
             "data.path=" + (tandem::test::source_dir() / "README.md").string(), "-s",
             "output.path=" + run.string()},
            run);
    CHECK_FALSE(fs::exists(state));
    CHECK_FALSE(fs::exists(run));
  }
}
