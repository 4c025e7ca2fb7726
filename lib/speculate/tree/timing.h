#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "speculate/plan/step_cost.h"

namespace tandem::speculate {

/// What the choice of a tree needs to know about a machine. A measurement fills it.
struct TimingTable {
  std::vector<StepCost> buckets;  // by rising batch, then by rising context; all of one overhead

  /// The bucket for texts of up to `context` tokens; the only one for 0.
  /// errors   kind recipe at `where`: several buckets and no context, a context beyond them all, or
  ///          buckets of several batches
  const StepCost& bucket(int context, const std::string& where) const;
};

/// Reads a sequoia-timing/1: {"format": "sequoia-timing/1", "overhead_ms": 0.1, "buckets":
/// [{"context": 1024, "target": {"tokens": [1, 2, 4], "ms": [24.2, 24.3, 24.4]}, "draft":
/// {"tokens": [1, 8], "ms": [0.5, 0.6]}}]}. `overhead_ms`, `skip_deepest` (true or false), `batch`
/// (then 1) and `context` may be left out, other members (device, models, bytes) are not needed.
/// errors   kind input at `where`: not such a file; no bucket; counts that do not rise from at
///          least 1, a target that does not begin at 1; times below 0 or above 1e9, or not one
///          for each count
TimingTable parse_timing(std::string_view text, const std::string& where);
TimingTable read_timing(const std::filesystem::path& path);

/// The table in that form. about: further members, which say what was measured.
std::string timing_json(const TimingTable& table, const nlohmann::ordered_json& about);

/// The same checks for a table made elsewhere.
void check_timing(const TimingTable& table, const std::string& where);

}  // namespace tandem::speculate
