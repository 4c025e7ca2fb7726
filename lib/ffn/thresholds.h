#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ffn/policy.h"

namespace tandem::ffn {

/// The least |act(g)| of a neuron that is kept, by layer of one model: a file of ffn-thresholds/1.
struct Thresholds {
  std::string model, fingerprint;  // its name; of its configuration and weight headers
  double keep = 0;                 // share of gates that reached them where they were measured
  std::vector<float> values;       // by layer
};

/// errors   kind input at `where`: another file, one that is cut off, or has a value that is no
///          number from 0 on
Thresholds parse_thresholds(std::string_view text, const std::string& where);
std::string thresholds_text(const Thresholds& thresholds);

/// Those of the model that the bounds are of.
/// errors   kind input: as parse_thresholds, no such file, or one of another model
Thresholds read_thresholds(const std::filesystem::path& path, const Bounds& bounds);

}  // namespace tandem::ffn
