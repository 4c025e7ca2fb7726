#pragma once
#include <span>
#include <string>

#include "model/weight_table.h"

namespace tandem::tools {

/// "q", "down": a matrix that adapters change.
const char* matrix_name(model::Weight weight);

/// "heads", "KV heads", "channels": its units.
const char* unit_name(model::Weight weight);

/// "53 in layers 0-2, 54 in layer 3": counts by layer, equal neighbours together, without zeros.
std::string counts_text(std::span<const int> counts);

/// A weight as it was written: 0.7, not the nearest f32 to 17 digits.
double written_weight(float weight);

}  // namespace tandem::tools
