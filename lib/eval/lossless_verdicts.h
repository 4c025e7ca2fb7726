#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/level_tests.h"
#include "eval/lossless.h"

// Results of checks of speculation, against their limits.
namespace tandem::eval {

/// One line of the result.
struct Verdict {
  std::string check;
  std::optional<double> temperature = {};  // none: all of them
  int64_t texts = 0;
  std::string found, limit;
  bool passed = false;
  nlohmann::ordered_json details = {};
};

/// One level of speculation: the steps that the target verifies, or those within them.
struct Level {
  std::string name;                   // before its checks; empty for the outer one
  const LevelTests* tests = nullptr;  // null: its tokens are not seen, as on a GPU
  const speculate::RoundStats* stats = nullptr;
  bool has_budget = false;  // spec.draft.cache limits what its draft reads
};

/// Verdicts on sampled texts. The probability that a lossless run fails any of them is at most
/// `significance`. One half of it goes to the comparison of texts, one half to tests of levels.
/// checks   [temperatures]
std::vector<Verdict> sampled_verdicts(std::span<const DistributionCheck> checks,
                                      std::span<const double> temperatures,
                                      std::span<const Level> levels, double significance);

/// Proposals that each level must accept, and refuse, in sampled texts.
inline constexpr int64_t kLeastProposals = 200;
/// Steps that a sampled text must take, on average.
inline constexpr int kLeastSteps = 3;

/// Why sampled texts prove nothing, and what to change.
struct Inconclusive {
  std::string why, remedy;
};

/// Nothing if each level accepted and refused enough, and texts took enough steps.
/// before   [levels] counts when sampled texts began
/// texts    number of texts by speculation
std::optional<Inconclusive> inconclusive(std::span<const Level> levels,
                                         std::span<const speculate::RoundStats> before,
                                         int64_t texts);

}  // namespace tandem::eval
