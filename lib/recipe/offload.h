#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// Layers whose weights stay in host memory, or whose keys stay out of it: `none`, a number, or
/// `auto` for what fits on the GPU.
struct Offload {
  static constexpr int kAuto = -1;
  int layers = 0;

  bool automatic() const { return layers == kAuto; }
  bool any() const { return layers != 0; }
};

std::string read_scalar(const Node& node, Offload& out);
std::string yaml_text(Offload value);
nlohmann::json json_of(Offload value);
inline std::string type_name(Offload) { return "none|auto|int"; }

}  // namespace tandem::recipe
