#include <doctest/doctest.h>

#include <csignal>

#include "cli/probe.h"

using namespace tandem::testing;

TEST_SUITE("cli/interrupt") {
  TEST_CASE("a signal ends the loading of a large model within 2 s") {
    const TemporaryFolder folder;
    Launch launch;
    launch.arguments = {"-m",
                        "synthetic:llama-3.2-1b",
                        "--prompt-ids",
                        folder.write("ids.json", "[1, 2, 3]").string(),
                        "-n",
                        "1",
                        "-v",
                        "-s",
                        "run.host_memory_limit=64GiB"};
    launch.signal = SIGINT;
    launch.signal_after = "memory   cpu";  // what -v tells before the weights are made
    const Outcome run = run_process(program("pig-generate"), launch);
    CHECK(run.status == 130);
    CHECK(run.cpu_seconds < 2);
    CHECK(run.err.find("pig-generate: error: interrupted\n") != std::string::npos);
    CHECK(run.out.empty());
  }
}
