#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "bench/speculation/measurement.h"
#include "speculate/tree/timing.h"

namespace tandem::bench {

/// What a way to decode should gain by times that were measured without it, and by its own
/// acceptance.
struct MeasuredPrediction {
  std::string times_from;
  double tokens = 1;                                // of a sequence and round
  double plain_ms = 0;                              // a decode step
  double draft_ms = 0, verify_ms = 0, rest_ms = 0;  // of a round; verify: the target's forward
  double round_ms() const { return draft_ms + verify_ms + rest_ms; }
  double token_ms() const { return round_ms() / tokens; }
  double speedup() const { return plain_ms / token_ms(); }
};

/// Of a chain, by the times of the same draft at other gammas. Its verification lies on the line
/// between those measured around it, of which a plain step is the first. None for plain decoding,
/// and where no other gamma was measured.
std::optional<MeasuredPrediction> predict_from_others(const PointRuns& point, const WayRuns& way);

/// Of rounds within rounds, by the times of both that they are made of alone, and the acceptance of
/// the way itself. None where one of these was not measured.
/// within   forwards of the rounds within that were timed apart from rounds; null: there are none
std::optional<MeasuredPrediction> predict_nested(const PointRuns& point, const WayRuns& way,
                                                 const speculate::TimingTable* within);

/// Of a tree, by forwards that were timed apart from rounds.
MeasuredPrediction predict_from_forwards(const PointRuns& point, const WayRuns& way,
                                         const speculate::TimingTable& times);

/// Group `predicted` of a record.
nlohmann::ordered_json prediction_json(const MeasuredPrediction& p, const Way& way);

}  // namespace tandem::bench
