#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "recipe/node.h"

namespace tandem::recipe {

/// When keys that were chosen once are chosen again: `never`, after each run of that many tokens,
/// or `alpha<T` when fewer than that share of the drafted tokens is accepted.
struct Rebuild {
  int tokens = 0;    // 0: not by their number
  double alpha = 0;  // 0: not by acceptance

  bool by_acceptance() const { return alpha > 0; }
};

std::string read_scalar(const Node& node, Rebuild& out);
std::string yaml_text(Rebuild value);
nlohmann::json json_of(Rebuild value);
inline std::string type_name(Rebuild) { return "never|int|alpha<number"; }

}  // namespace tandem::recipe
