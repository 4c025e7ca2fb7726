#pragma once
#include <nlohmann/json_fwd.hpp>

// For headers that only name JSON values: nlohmann/json.hpp costs a unit more than a second.
namespace tandem::io {

using Json = nlohmann::json;

}  // namespace tandem::io
