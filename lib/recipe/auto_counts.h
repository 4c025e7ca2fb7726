#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "recipe/node.h"

namespace tandem::recipe {

/// Numbers of at least 1, to be tried one after the other, and `auto`, with which the tool chooses.
struct AutoCounts {
  std::vector<int> values;
  bool has_auto = values.empty();

  bool automatic() const { return values.empty(); }
};

std::string read_scalar(const Node& node, AutoCounts& out);
std::string yaml_text(const AutoCounts& counts);
nlohmann::json json_of(const AutoCounts& counts);
inline std::string type_name(const AutoCounts&) { return "auto|int|list of them"; }

}  // namespace tandem::recipe
