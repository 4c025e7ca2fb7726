#include "recipe/auto_counts.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "recipe/scalar.h"

namespace tandem::recipe {

std::string read_scalar(const Node& node, AutoCounts& out) {
  const bool is_plain = node.kind == Node::Kind::scalar && !node.quoted;
  if (is_plain && node.scalar == "auto") {
    out.values.clear();
    return {};
  }
  const bool is_list = node.kind == Node::Kind::list && !node.items.empty();
  const std::vector<Node> items = is_list ? node.items : std::vector<Node>{node};
  std::vector<int> values;
  for (const Node& item : items) {
    int value = 0;
    if (!read_scalar(item, value).empty() || value < 1)
      return "expected auto or numbers of at least 1, found " + item.described();
    if (std::ranges::find(values, value) != values.end())
      return "names " + item.described() + " twice";
    values.push_back(value);
  }
  out.values = std::move(values);
  return {};
}

std::string yaml_text(const AutoCounts& counts) {
  if (counts.automatic()) return "auto";
  if (counts.values.size() == 1) return std::to_string(counts.values.front());
  return fmt::format("[{}]", fmt::join(counts.values, ", "));
}

}  // namespace tandem::recipe
