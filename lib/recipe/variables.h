#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"
#include "recipe/scalar.h"

namespace tandem::recipe {

/// Values by names that the recipe's author chooses, as YAML writes them: {name: value}.
struct Variables {
  Node map;  // of kind map, or null where there are none
};

std::string read_item(const Node& node, const Folders& models, Variables& out);
std::string yaml_text(const Variables& value);
inline std::string type_name(const Variables&) { return "map"; }
nlohmann::json json_of(const Variables& value);
/// The same with names in their order.
nlohmann::ordered_json ordered_json_of(const Variables& value);

}  // namespace tandem::recipe
