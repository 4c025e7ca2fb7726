#include "recipe/offload.h"

#include "recipe/scalar.h"

namespace tandem::recipe {

std::string read_scalar(const Node& node, Offload& out) {
  const bool plain = node.kind == Node::Kind::scalar && !node.quoted;
  if (plain && (node.scalar == "none" || node.scalar == "auto")) {
    out.layers = node.scalar == "none" ? 0 : Offload::kAuto;
    return {};
  }
  int layers = 0;
  if (!read_scalar(node, layers).empty() || layers < 0)
    return "expected none, auto or a number of layers, found " + node.described();
  out.layers = layers;
  return {};
}

std::string yaml_text(Offload value) {
  if (value.automatic()) return "auto";
  return value.any() ? std::to_string(value.layers) : "none";
}

}  // namespace tandem::recipe
