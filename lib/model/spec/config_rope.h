#pragma once
#include <cstdint>
#include <string>

#include "io/json_fwd.h"
#include "model/spec/config.h"

namespace tandem::model {

/// RoPE of a config.json in either spelling: rope_theta with rope_scaling {type or rope_type, ...},
/// or rope_parameters {rope_type, rope_theta, ...}. A file may hold both if they agree.
/// max_positions   max_position_embeddings, the original context of YaRN and llama3 if no key says
/// usual_theta     the value if no key gives one
/// errors   kind input at `where`: an unsupported type (named), a parameter missing or out of range
ops::RopeSpec parse_rope(const io::Json& config, const std::string& where, int64_t max_positions,
                         double usual_theta);

}  // namespace tandem::model
