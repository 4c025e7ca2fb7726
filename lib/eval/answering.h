#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/answer_sets.h"
#include "eval/corrected.h"
#include "eval/panel.h"
#include "eval/reads.h"

namespace tandem::eval {

/// What one policy answered to one question.
struct SetAnswer {
  int policy = 0;  // of the panel
  bool correct = false;
  std::optional<std::string> extracted = {};  // nothing in the text looked like an answer
  std::string text = {};                      // all that was written, without control tokens
  int64_t n_tokens = 0;                       // of it, and the one that ended it
  bool ended = false;                         // by the model, before the token limit
  std::optional<Reads> reads = {};            // absent when no row went through the policy
  std::optional<RoundCounts> rounds = {};     // of answers that are corrected
};

/// Asks all policies of the panel these questions of a set. Each policy reads the prompts densely
/// and decodes greedily, as plain generation under it does: up to an end-of-text token of the model
/// or the set's limit. What one question is answered does not depend on the others.
/// corrections  by policy of the panel; beyond the end there are none
/// result   answers of each question, in the order of the members' policies
/// cost     one prefill of each question a policy, then up to SetFacts::max_tokens steps
/// errors   kind memory, numeric, interrupted
std::vector<std::vector<SetAnswer>> answer_questions(const Panel& panel, AnswerSet set,
                                                     std::span<const Question> questions,
                                                     const std::vector<Correction>& corrections);

/// An engine of answer_questions that reads by these policies, `group` questions at once.
/// max_tokens  of a prompt and its answer together
/// vocab    of the model, for policies that are corrected
decode::EngineSpec answer_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                      int prefill_chunk, int max_tokens, int group, int vocab = 0);

}  // namespace tandem::eval
