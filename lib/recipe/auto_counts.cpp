#include "recipe/auto_counts.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "recipe/scalar.h"

namespace tandem::recipe {

std::string read_scalar(const Node& node, AutoCounts& out) {
  const bool is_list = node.kind == Node::Kind::list && !node.items.empty();
  const std::vector<Node> items = is_list ? node.items : std::vector<Node>{node};
  std::vector<int> values;
  bool has_auto = false;
  for (const Node& item : items) {
    int value = 0;
    const bool is_auto = item.kind == Node::Kind::scalar && !item.quoted && item.scalar == "auto";
    if (is_auto && has_auto) return "names auto twice";
    has_auto = has_auto || is_auto;
    if (is_auto) continue;
    if (!read_scalar(item, value).empty() || value < 1)
      return "expected auto or numbers of at least 1, found " + item.described();
    if (std::ranges::find(values, value) != values.end())
      return "names " + item.described() + " twice";
    values.push_back(value);
  }
  out = {std::move(values), has_auto};
  return {};
}

std::string yaml_text(const AutoCounts& counts) {
  if (counts.automatic()) return "auto";
  if (counts.values.size() == 1 && !counts.has_auto) return std::to_string(counts.values.front());
  return fmt::format("[{}{}]", fmt::join(counts.values, ", "), counts.has_auto ? ", auto" : "");
}

}  // namespace tandem::recipe
