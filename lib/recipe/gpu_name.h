#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// A card of base/gpu_cards.h, by its name.
struct GpuName {
  std::string value;
};

/// Where there is none of this name, suggests those that may have been meant.
std::string read_scalar(const Node& node, GpuName& out);
inline std::string yaml_text(const GpuName& value) { return value.value; }
nlohmann::json json_of(const GpuName& value);
inline std::string type_name(const GpuName&) { return "gpu"; }

/// All names, for the field's text: `b200, h200, ...`.
std::string gpu_names();

}  // namespace tandem::recipe
