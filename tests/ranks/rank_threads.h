#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ranks/group.h"
#include "temporary_folder.h"

/// The ranks of a run as threads of a test.
namespace tandem::test {

/// How a rank's work ended: empty, the text of its error, or `ended N` where rank 0 has the report.
struct RankResult {
  std::string text;
  ErrorKind kind = ErrorKind::internal;
};

struct RankSetup {
  int size = 2;
  double timeout_s = 10;
  std::function<ranks::Facts(int rank)> facts = [](int) { return ranks::Facts{}; };
  std::function<bool(int rank)> interrupted = [](int) { return false; };
};

/// Runs `work` on all ranks, which meet by a file.
inline std::vector<RankResult> run_ranks(const RankSetup& setup,
                                         const std::function<void(ranks::Group&)>& work) {
  const TemporaryFolder folder;
  std::vector<RankResult> results(static_cast<size_t>(setup.size));
  std::vector<std::thread> threads;
  for (int r = 0; r < setup.size; ++r)
    threads.emplace_back([&, r] {
      RankResult& result = results[static_cast<size_t>(r)];
      try {
        ranks::Group group({.rank = r,
                            .size = setup.size,
                            .rendezvous = (folder / "meet").string(),
                            .timeout_s = setup.timeout_s},
                           setup.facts(r),
                           {.interrupted = [&, r] { return setup.interrupted(r); }});
        try {
          work(group);
          group.finish();
        } catch (const Error& e) {
          group.leave(e);
          throw;
        }
      } catch (const Error& e) {
        result = {e.what(), e.kind()};
      } catch (const ranks::Ended& e) {
        result.text = "ended " + std::to_string(e.status);
      }
    });
  for (std::thread& t : threads) t.join();
  return results;
}

}  // namespace tandem::test
