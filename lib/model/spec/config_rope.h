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
  double sliding_theta = 0;  // for layers with a window; 0: all layers have one table
  int head_dim = 0;
  bool partial = false;  // partial_rotary_factor is read
};

/// RoPE of a config.json in either spelling: rope_theta with rope_scaling {type or rope_type, ...},
/// or rope_parameters {rope_type, rope_theta, ...}. A file may hold both if they agree. Layers with
/// a window may have a second table: rope_local_base_freq, or sections of rope_parameters named
/// full_attention and sliding_attention.
/// errors   kind input at `where`: an unsupported type (named), a parameter missing or out of range
std::vector<ops::RopeSpec> parse_ropes(const io::Json& config, const std::string& where,
                                       const RopeDefaults& defaults);

}  // namespace tandem::model
