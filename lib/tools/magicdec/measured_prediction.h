#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "speculate/plan/round_times.h"
#include "tools/magicdec/measurement.h"

namespace tandem::tools {

/// What a way to decode should gain by the times of the same draft at other gammas, and by its own
/// acceptance. Verification of a chain lies on the line between those measured around it, of which
/// a plain step is the first.
struct MeasuredPrediction {
  speculate::RoundTimes times;
  speculate::GammaChoice choice;
  std::vector<int> gammas;  // whose times they are
};

/// None for plain decoding, and where no other gamma was measured.
std::optional<MeasuredPrediction> predict_from_others(const PointRuns& point, const WayRuns& way);

/// Group `predicted` of a record.
nlohmann::ordered_json prediction_json(const MeasuredPrediction& p);

}  // namespace tandem::tools
