#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace tandem::text {

/// "left right" of a merge list, cut at its only space.
/// errors   kind input at `where`: not two pieces
std::pair<std::string, std::string> split_merge(std::string_view rule, const std::string& where);

}  // namespace tandem::text
