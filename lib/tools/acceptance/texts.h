#pragma once
#include <memory>
#include <string>

#include "decode/engine.h"
#include "eval/tasks.h"
#include "tools/acceptance/recipe.h"
#include "tools/bench/bench_prompts.h"

namespace tandem::tools {

/// A text on which drafts are measured: a prompt, and how it goes on.
struct MeasuredText {
  eval::Ids prompt;
  eval::Ids next;  // of documents the answer at first, the rest is still to be written
  int answer = 0;  // tokens of next that answer the question; 0 of prose
};

/// The texts of a point.
struct MeasuredTexts {
  std::string source;
  std::vector<std::vector<MeasuredText>> batches;  // [batches][batch]
  int distinct = 0;
  bool overlap = false;  // windows of a text that is shorter than all of them together
};

/// given    those of the command line, if the recipe says so
/// errors   kind input: no such text, one that is too short, documents without a tokenizer
MeasuredTexts measured_texts(const AcceptanceRecipe& recipe, const decode::ModelFiles& files,
                             const std::vector<eval::Ids>& given);

}  // namespace tandem::tools
