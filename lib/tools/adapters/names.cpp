#include "tools/adapters/names.h"

#include <fmt/format.h>

#include <string>

namespace tandem::tools {

std::string counts_text(std::span<const int> units) {
  std::string text;
  for (size_t from = 0; from < units.size();) {
    size_t to = from;
    while (to + 1 < units.size() && units[to + 1] == units[from]) ++to;
    if (units[from] > 0) {
      text += fmt::format("{}{} in layer", text.empty() ? "" : ", ", units[from]);
      text += to > from ? fmt::format("s {}-{}", from, to) : fmt::format(" {}", from);
    }
    from = to + 1;
  }
  return text;
}

double written_weight(float weight) { return std::stod(fmt::format("{}", weight)); }

}  // namespace tandem::tools
