#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cli/probe.h"

/// All ranks of a run as processes.
namespace tandem::testing {

/// A text of tiny-16m, the same on any number of ranks.
inline const Words kText = {"-m",       "tiny-16m",
                            "-p",       "The keeper of the lighthouse",
                            "-n",       "24",
                            "--device", "cpu",
                            "-s",       "model.compute=f32",
                            "-s",       "run.threads=1",
                            "-q"};

struct RankRun {
  std::function<Words(int rank)> more = [](int) { return Words{}; };
  std::function<void(int rank, Launch&)> change = [](int, Launch&) {};
  std::string tool = "pig-generate";
};

/// All ranks of a run, which meet by a file.
inline std::vector<Outcome> run_ranks(int size, const Words& words, const RankRun& how = {}) {
  const TemporaryFolder folder;
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      Launch launch{.arguments = words +
                                 Words{"-s", fmt::format("run.rank={}", r), "-s",
                                       fmt::format("run.world_size={}", size), "-s",
                                       "run.rendezvous=" + (folder / "meet").string()} +
                                 how.more(r)};
      how.change(r, launch);
      outcomes[static_cast<size_t>(r)] = run_process(program(how.tool), launch);
    });
  for (std::thread& t : threads) t.join();
  return outcomes;
}

}  // namespace tandem::testing
