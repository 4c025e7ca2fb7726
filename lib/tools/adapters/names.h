#pragma once
#include <span>
#include <string>

namespace tandem::tools {

/// "53 in layers 0-2, 54 in layer 3": counts by layer, equal neighbours together, without zeros.
std::string counts_text(std::span<const int> counts);

/// A weight as it was written: 0.7, not the nearest f32 to 17 digits.
double written_weight(float weight);

}  // namespace tandem::tools
