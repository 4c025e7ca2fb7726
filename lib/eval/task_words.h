#pragma once
#include <span>
#include <string_view>

namespace tandem::eval {

/// Words of keys ("amber-anchor") and of word lists: common, lower case, no word in both. The small
/// models met these in training and read word lists of other words badly (cwe falls to 0).
std::span<const std::string_view> key_adjectives();
std::span<const std::string_view> key_nouns();

}  // namespace tandem::eval
