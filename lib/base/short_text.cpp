#include "base/short_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace tandem {

std::string short_time(double seconds) {
  const auto s = static_cast<long>(std::ceil(std::min(seconds, 1e8)));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

std::string short_number(double x) {
  constexpr const char* kSuffix[] = {"", "k", "M", "G", "T"};
  size_t i = 0;
  while (std::fabs(x) >= 1000 && i + 1 < std::size(kSuffix)) x /= 1000, ++i;
  return i == 0 && x == std::floor(x) ? fmt::format("{:.0f}", x)
                                      : fmt::format("{:.1f}{}", x, kSuffix[i]);
}

}  // namespace tandem
