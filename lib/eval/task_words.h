#pragma once
#include <span>
#include <string_view>

namespace tandem::eval {

/// Words of the keys ("amber-anchor") and of the word lists: common, short, lower case.
std::span<const std::string_view> key_adjectives();
std::span<const std::string_view> key_nouns();
std::span<const std::string_view> list_words();

}  // namespace tandem::eval
