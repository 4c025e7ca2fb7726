#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench/record.h"
#include "bench/record_view.h"
#include "bench/speculation/measurement.h"
#include "bench/stats.h"

namespace tandem::bench {

/// Milliseconds of the parts of a round of the whole batch, each the median of the batches.
struct RoundParts {
  double draft;   // all its draft steps
  double target;  // the target's forward
  double verify;  // drawing and accepting, and moving the accepted keys
  double rest;    // the rest of the round: the host
  double round;
};
/// way      with rounds
RoundParts parts_of(const WayRuns& way);

/// What a way to decode gains over plain decoding of the same run.
struct Gain {
  double speedup = 1;                  // while the whole batch decodes: the median of batches
  std::optional<Interval> interval{};  // 95 %, of paired batches; of one batch none
  double to_end = 1;      // until the last sequence has ended: rounds of fewer sequences too
  double end_to_end = 1;  // prefill too
  /// Tokens of an output from which on it pays, what a draft reads of the prompts included; none
  /// where it never does.
  std::optional<int64_t> pays_from{};
};
Gain gain_of(const WayRuns& plain, const WayRuns& way, const std::vector<double>& prefill_s);

/// What the figures of rounds mean, for people.
inline constexpr std::string_view kRoundWords =
    "tokens/step: accepted draft tokens plus one from the target (vLLM's mean acceptance length). "
    "alpha: accepted over tested tokens, where no token after a rejected one is tested. "
    "acc/drafted: accepted over drafted tokens (llama.cpp's acceptance rate). speed-up: while all "
    "sequences run. to last: until the last sequence ends. total: with the prefill";

/// What records say of the counts of rounds, for group `spec`.
Json counts_json(const speculate::RoundStats& rounds);

/// The table of measured ways; the cells of rounds are empty for plain decoding.
RecordView measured_view();
/// The table of predictions without measurements.
RecordView predicted_view();

/// Groups timing, spec, latency and throughput.
/// prompt_tokens  mean length of a prompt
void add_measured(Record& record, const PointRuns& point, const WayRuns& way, double prompt_tokens);

}  // namespace tandem::bench
