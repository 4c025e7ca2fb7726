#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// How often something is made again while tokens are generated: `never`, or after each run of that
/// many tokens.
struct Refresh {
  int tokens = 0;  // 0 = never

  bool ever() const { return tokens > 0; }
};

std::string read_scalar(const Node& node, Refresh& out);
std::string yaml_text(Refresh value);
nlohmann::json json_of(Refresh value);
inline std::string type_name(Refresh) { return "never|int"; }

}  // namespace tandem::recipe
