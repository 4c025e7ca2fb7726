#include "recipe/auto_count.h"

#include "recipe/scalar.h"

namespace tandem::recipe {

std::string read_scalar(const Node& node, AutoCount& out) {
  const bool plain = node.kind == Node::Kind::scalar && !node.quoted;
  if (plain && node.scalar == "auto") {
    out.value = AutoCount::kAuto;
    return {};
  }
  int value = 0;
  if (!read_scalar(node, value).empty() || value < 1)
    return "expected auto or a number of at least 1, found " + node.described();
  out.value = value;
  return {};
}

std::string yaml_text(AutoCount count) {
  return count.automatic() ? "auto" : std::to_string(count.value);
}

}  // namespace tandem::recipe
