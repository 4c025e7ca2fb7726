#pragma once
#include <string>

namespace tandem {

/// Seconds in a few characters: 48s, 12m05s, 3h20m.
std::string short_time(double seconds);
/// A number in at most five characters: 812, 59.9k, 1.5M.
std::string short_number(double x);

}  // namespace tandem
