#include "recipe/refresh.h"

#include "recipe/scalar.h"

namespace tandem::recipe {

std::string read_scalar(const Node& node, Refresh& out) {
  if (node.kind == Node::Kind::scalar && !node.quoted && node.scalar == "never") {
    out.tokens = 0;
    return {};
  }
  int tokens = 0;
  if (!read_scalar(node, tokens).empty() || tokens < 1)
    return "expected never or a number of tokens of at least 1, found " + node.described();
  out.tokens = tokens;
  return {};
}

std::string yaml_text(Refresh value) {
  return value.ever() ? std::to_string(value.tokens) : "never";
}

}  // namespace tandem::recipe
