#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// A number of at least 1, or `auto`: the tool chooses it.
struct AutoCount {
  static constexpr int kAuto = 0;
  int value = kAuto;

  bool automatic() const { return value == kAuto; }
};

std::string read_scalar(const Node& node, AutoCount& out);
std::string yaml_text(AutoCount count);
nlohmann::json json_of(AutoCount count);
inline std::string type_name(AutoCount) { return "auto|int"; }

}  // namespace tandem::recipe
