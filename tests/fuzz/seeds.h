#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tandem::fuzz {

/// Small valid inputs of a target, most of them cut from the embedded models; they throw if the
/// models are not there. Small, because a fuzzer's speed and luck fall with the length of its
/// input.
std::vector<std::string> seeds(std::string_view target);

/// All targets that seeds() knows.
std::vector<std::string> targets();

}  // namespace tandem::fuzz
