#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// Layers of a model: `all`, one (`7`), or from one to another, both included (`16-31`).
struct LayerRange {
  static constexpr int kLast = -1;  // the model's last layer
  int first = 0, last = kLast;

  bool all() const { return first == 0 && last == kLast; }
  bool contains(int layer) const { return layer >= first && (last == kLast || layer <= last); }
};

std::string read_scalar(const Node& node, LayerRange& out);
std::string yaml_text(LayerRange value);
nlohmann::json json_of(LayerRange value);
inline std::string type_name(LayerRange) { return "all|int|int-int"; }

}  // namespace tandem::recipe
