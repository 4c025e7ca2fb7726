#pragma once
#include <nlohmann/json_fwd.hpp>

// For headers that only name JSON values: nlohmann/json.hpp costs a unit more than a second.
namespace tandem::io {

using Json = nlohmann::json;
/// Keeps the order of keys, which a chat template may write; a key is found by a linear search.
using OrderedJson = nlohmann::ordered_json;

}  // namespace tandem::io
