#include "recipe/layer_range.h"

#include <algorithm>

namespace tandem::recipe {
namespace {

/// A number of at most four digits, or -1.
int layer_number(std::string_view text) {
  const bool is_number = !text.empty() && text.size() <= 4 &&
                         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? std::stoi(std::string(text)) : -1;
}

}  // namespace

std::string read_scalar(const Node& node, LayerRange& out) {
  const std::string& text = node.scalar;
  if (node.kind == Node::Kind::scalar && text == "all") {
    out = {};
    return {};
  }
  const size_t dash = std::min(text.find('-'), text.size());
  const int first = layer_number(std::string_view(text).substr(0, dash));
  const int last =
      dash < text.size() ? layer_number(std::string_view(text).substr(dash + 1)) : first;
  if (node.kind != Node::Kind::scalar || first < 0 || last < 0)
    return "expected all, a layer such as 7, or layers such as 16-31, found " + node.described();
  if (last < first) return "the last layer comes before the first in " + node.described();
  out = {.first = first, .last = last};
  return {};
}

std::string yaml_text(LayerRange value) {
  if (value.all()) return "all";
  if (value.first == value.last) return std::to_string(value.first);
  return std::to_string(value.first) + "-" + std::to_string(value.last);
}

}  // namespace tandem::recipe
