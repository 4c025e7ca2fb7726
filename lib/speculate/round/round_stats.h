#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "decode/sampler.h"
#include "speculate/tree/tree_room.h"

namespace tandem::speculate {

/// One round of one sequence.
struct RoundEvent {
  int seq = 0;
  int drafted = 0, accepted = 0;
  int offered = 0;                     // of the drafted ones, those of a longest path
  int refused = 0;                     // nodes that the rule tried and gave up
  std::span<const int32_t> path = {};  // accepted nodes, valid while on_round runs
};

/// What rounds have done so far, over all sequences.
struct RoundStats {
  std::string drafter;   // its name
  std::string rule;      // of verification, rule_name
  bool lossy = false;    // it leaves the target's distribution
  int nodes = 0;         // of a tree, the root counts
  int64_t rounds = 0;    // a sequence's, not a batch's
  int64_t drafted = 0;   // nodes, roots left out
  int64_t accepted = 0;  // of them
  int64_t offered = 0;   // tokens that could have been accepted: of longest paths
  int64_t refused =
      0;  // nodes that the rule tried and gave up; a lower bound for trees of inner steps
  int64_t cut_short = 0;  // rounds that accepted fewer than offered
  int64_t tested = 0;     // of chains: the accepted ones, and the one that ended each round early
  int64_t emitted =
      0;  // tokens: accepted and one more a round, those after a sequence's end included
  std::vector<int64_t> accepted_hist;  // rounds by number of accepted nodes
  double draft_s = 0, target_s = 0, verify_s = 0;
  double host_s = 0;  // on a GPU, what the CPU does for rounds

  /// room     of all that is proposed
  RoundStats(std::string name, std::string verify_rule, const TreeRoom& room)
      : drafter(std::move(name)),
        rule(std::move(verify_rule)),
        nodes(room.nodes),
        accepted_hist(static_cast<size_t>(room.levels)) {}
  void add(const RoundEvent& round);
  /// Those of other rounds of the same kind.
  void add(const RoundStats& other);
  /// What came after `earlier`, of the same rounds.
  RoundStats since(const RoundStats& earlier) const;
  /// Accepted tokens and the one after them: vLLM's mean acceptance length.
  double tokens_per_round() const {
    return rounds > 0 ? static_cast<double>(emitted) / static_cast<double>(rounds) : 0;
  }
  /// Tokens that were given up in a round which accepted fewer than it could: Sirius' rollback
  /// length.
  double mean_rollback() const {
    return cut_short > 0 ? static_cast<double>(offered - accepted) / static_cast<double>(cut_short)
                         : 0;
  }
  /// Drafted tokens of a path and the one after it: Sirius' kernel size k.
  double mean_offered() const {
    return rounds > 0 ? 1 + static_cast<double>(offered) / static_cast<double>(rounds) : 0;
  }
  /// Rounds that accepted a token at depth 1, 2, ... over all rounds: vLLM's acceptance rate by
  /// position. Empty without rounds.
  std::vector<double> rate_by_position() const {
    std::vector<double> rates;
    int64_t reached = rounds;
    for (size_t depth = 1; rounds > 0 && depth < accepted_hist.size(); ++depth) {
      reached -= accepted_hist[depth - 1];
      rates.push_back(static_cast<double>(reached) / static_cast<double>(rounds));
    }
    return rates;
  }
  /// Of chains: accepted over tested tokens, the alpha of MagicDec.
  double share_of_tested() const {
    return tested > 0 ? static_cast<double>(accepted) / static_cast<double>(tested) : 0;
  }
  /// Accepted over drafted tokens: llama.cpp's acceptance rate.
  double share_accepted() const {
    return drafted > 0 ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0;
  }
};

/// errors   kind recipe: settings that speculation does not support
void check_sampler(const decode::SamplerSpec& spec);

}  // namespace tandem::speculate
