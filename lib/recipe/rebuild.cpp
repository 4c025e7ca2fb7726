#include "recipe/rebuild.h"

#include "recipe/refresh.h"
#include "recipe/scalar.h"
#include "recipe/units.h"

namespace tandem::recipe {
namespace {

constexpr std::string_view kAlpha = "alpha<";

}  // namespace

std::string read_scalar(const Node& node, Rebuild& out) {
  Refresh every;
  if (read_scalar(node, every).empty()) {
    out = {.tokens = every.tokens};
    return {};
  }
  const bool is_text = node.kind == Node::Kind::scalar && !node.quoted;
  double alpha = 0;
  if (!is_text || !node.scalar.starts_with(kAlpha) ||
      !parse_units(std::string_view(node.scalar).substr(kAlpha.size()), alpha).empty() ||
      !(alpha > 0 && alpha < 1))
    return "expected never, a number of tokens of at least 1, or a bound such as alpha<0.8, "
           "found " +
           node.described();
  out = {.alpha = alpha};
  return {};
}

std::string yaml_text(Rebuild value) {
  return value.by_acceptance() ? std::string(kAlpha) + yaml_text(value.alpha)
                               : yaml_text(Refresh{value.tokens});
}

}  // namespace tandem::recipe
