#pragma once
#include <span>
#include <vector>

#include "eval/own_tasks.h"
#include "eval/protocols.h"

namespace tandem::eval {

/// How the questions of an own task are judged.
struct OwnSpec {
  std::vector<Protocol> protocols;
  std::vector<Correction> corrections = {};  // by policy of the panel; not with choices
  Match match = Match::start;
  int max_tokens = 0;  // of text answers
};

/// Judges all policies of the panel on a group of questions of one kind, by the protocols of
/// run_cases: each engine reads the prompts once, and each policy continues forks of them.
///
/// Without choices the policy writes greedily, up to an end-of-text token or spec.max_tokens; one
/// outcome of score generated. With choices it gives each its log-probability after the question;
/// two outcomes: acc, the choice of the highest sum is right, and acc_norm, that of the highest sum
/// over the bytes of its text. Of equal ones the first counts.
/// result   outcomes of each question
/// errors   kind memory, numeric, interrupted
std::vector<std::vector<Outcome>> answer_own(const Panel& panel,
                                             std::span<const OwnQuestion> questions,
                                             const OwnSpec& spec);

}  // namespace tandem::eval
