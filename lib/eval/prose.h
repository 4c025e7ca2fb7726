#pragma once
#include <cstddef>
#include <string>

#include "base/rng.h"

namespace tandem::eval {

/// At least `min_bytes` of varied, grammatical English: paragraphs of three to seven sentences
/// about people, places and weather, each paragraph about one person. It holds no digits and none
/// of the phrasings of the tasks, so nothing in it answers a question.
std::string generate_prose(PhiloxStream& rng, size_t min_bytes);

}  // namespace tandem::eval
