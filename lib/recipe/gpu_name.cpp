#include "recipe/gpu_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>

#include "base/gpu_cards.h"
#include "recipe/problems.h"

namespace tandem::recipe {
namespace {

std::vector<std::string_view> names() {
  std::vector<std::string_view> all;
  for (const GpuCard& card : gpu_cards()) all.push_back(card.name);
  return all;
}

/// What may have been meant: all cards of the model that a word names in part, else the nearest.
std::string meant(std::string word) {
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::vector<std::string> of_model;
  for (const std::string_view name : names())
    if (word.size() > 1 && name.starts_with(word)) of_model.push_back(fmt::format("'{}'", name));
  return of_model.empty() ? did_you_mean(word, names())
                          : fmt::format("did you mean {}?", fmt::join(of_model, " or "));
}

}  // namespace

std::string gpu_names() { return fmt::format("{}", fmt::join(names(), ", ")); }

std::string read_scalar(const Node& node, GpuName& out) {
  if (node.kind != Node::Kind::scalar)
    return "expected the name of a GPU, found " + node.described();
  if (find_gpu_card(node.scalar) == nullptr) {
    const std::string near = meant(node.scalar);
    return fmt::format("no GPU of the table is called {}{}{}", node.described(),
                       near.empty() ? "" : "; ", near);
  }
  out.value = node.scalar;
  return {};
}

}  // namespace tandem::recipe
