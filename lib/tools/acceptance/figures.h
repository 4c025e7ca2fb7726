#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench/record.h"
#include "eval/score_stats.h"
#include "io/table.h"
#include "speculate/measure/chain_meter.h"
#include "speculate/round/round_stats.h"

namespace tandem::tools {

/// What the figures mean, for people.
inline constexpr std::string_view kAcceptanceWords =
    "tested: on given texts, the mean over positions of sum min(p, q) of the target's and the "
    "draft's distributions (at temperature 0, the share of equal best tokens). answer: the same at "
    "the positions of a document's answer. drafted: in speculation steps, along the draft's own "
    "tokens, weighted by the probability that a position is tested. inner: for the small model's "
    "tokens in inner steps. tokens/step: accepted draft tokens plus one from the target (vLLM's "
    "mean acceptance length). rate by position: share of steps that accept at least that many "
    "draft tokens (vLLM's acceptance rate by position). acc/drafted: accepted over drafted tokens "
    "(llama.cpp's acceptance rate). by child: share of positions that accept the first, second, "
    "... "
    "child (acceptance vector). Drafts cut by the end of a text count only for nested drafts";

/// Parts of a continuation that acceptance is reported by.
inline constexpr int kContinuationParts = 8;

/// A draft's acceptance on given texts at one temperature.
class TestedAcceptance {
 public:
  /// new_tokens  of each text
  TestedAcceptance(int gamma, int new_tokens) : gamma_(gamma), new_tokens_(new_tokens) {}

  /// overlaps  of a text, by position
  /// answer    positions at first that answer a question
  void add(const std::vector<double>& overlaps, int answer);
  /// Standard errors take runs of 64 tokens as independent.
  eval::Estimate alpha() const { return eval::mean_of_blocks(blocks_); }
  /// None of prose. Its standard error takes texts as independent.
  std::optional<eval::Estimate> answer() const;
  bench::Json json() const;

 private:
  int gamma_, new_tokens_;
  std::vector<eval::Block> blocks_, answers_;
  std::vector<eval::Block> by_position_ = std::vector<eval::Block>(static_cast<size_t>(gamma_));
  std::vector<eval::Block> by_part_ = std::vector<eval::Block>(kContinuationParts);
};

/// The alpha of rounds by the part of the continuation that they stand in.
class AcceptanceByOutput {
 public:
  explicit AcceptanceByOutput(int new_tokens) : new_tokens_(new_tokens) {}

  /// token    of the continuation, with which the round begins
  void add(int token, const speculate::ChainMeter::Chances& round);
  bench::Json json() const;

 private:
  struct Part {
    double tested = 0, accepted = 0;
    int64_t rounds = 0;
  };
  int new_tokens_;
  std::vector<Part> parts_ = std::vector<Part>(kContinuationParts);
};

/// A draft's acceptance in rounds at one temperature.
struct DraftedAcceptance {
  /// Expected accepted over expected tested tokens. The standard error takes rounds as independent.
  eval::Estimate alpha;
  std::vector<double> by_position;       // the same of each drafted token
  std::vector<double> rate_by_position;  // of all rounds
  double tokens_per_round = 1, share_accepted = 0;
  size_t rounds = 0;

  explicit DraftedAcceptance(const std::vector<speculate::ChainMeter::Chances>& rounds);
  bench::Json json() const;
};

}  // namespace tandem::tools
