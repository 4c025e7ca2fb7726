#pragma once
#include <cstdint>
#include <string>

#include "io/json_fwd.h"
#include "model/spec/config.h"

namespace tandem::model {

/// Values for keys that a config.json leaves out.
struct RopeDefaults {
  int64_t max_positions = 0;  // max_position_embeddings: the original context of YaRN and llama3
  double theta = 10000;
  int head_dim = 0;
  bool partial = false;  // partial_rotary_factor is read
};

/// RoPE of a config.json in either spelling: rope_theta with rope_scaling {type or rope_type, ...},
/// or rope_parameters {rope_type, rope_theta, ...}. A file may hold both if they agree.
/// errors   kind input at `where`: an unsupported type (named), a parameter missing or out of range
ops::RopeSpec parse_rope(const io::Json& config, const std::string& where,
                         const RopeDefaults& defaults);

}  // namespace tandem::model
