#pragma once
#include <string>
#include <vector>

#include "base/rng.h"
#include "eval/tasks.h"

namespace tandem::eval {

/// What a task asks, as text.
struct Quiz {
  std::vector<std::string> needles;  // in the order in which they shall stand
  std::string question, answer_prefix, answer;
};

/// Draws a quiz for a case of `length` tokens.
Quiz make_quiz(PhiloxStream& rng, Task task, size_t length);

}  // namespace tandem::eval
