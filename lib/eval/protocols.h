#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/engine.h"
#include "eval/corrected.h"
#include "eval/panel.h"
#include "eval/reads.h"
#include "eval/settings.h"
#include "eval/tasks.h"

namespace tandem::eval {

/// What one policy made of one case.
struct Outcome {
  int policy = 0;  // of the panel
  Protocol protocol = Protocol::dense;
  Score score = Score::forced;
  bool correct = false;
  std::optional<Reads> reads = {};         // absent when no row went through the policy
  std::optional<RoundCounts> rounds = {};  // of answers that are corrected
  std::string text = {};              // of an own question without choices: all that was written
  std::vector<double> logprobs = {};  // of the choices, with score acc
};

struct CaseSpec {
  std::vector<Protocol> protocols;
  std::vector<Score> scores;
  std::vector<Correction> corrections =
      {};  // by policy of the panel; beyond the end there are none
};

/// Judges all policies of the panel on a group of cases. Each engine prefills them once, densely,
/// and each of its policies continues forks. The cases of a group run as one ragged batch; the
/// verdict on one does not depend on the others.
///
/// sparse   question and answer tokens are decoded with the policy.
/// dense    the question is prefilled too; only answer tokens are decoded with the policy. The row
///          that predicts the first of them is the last of the prompt, hence dense and the same for
///          all policies; where it is wrong no policy runs.
///
/// Teacher forcing runs question and answer as one chunk of rows; a policy's rules hold row by row.
/// result   outcomes of each case
/// cost     one prefill a case and engine, and a few rows for each policy, protocol and score
/// errors   kind memory, numeric
std::vector<std::vector<Outcome>> run_cases(const Panel& panel, std::span<const Case> cases,
                                            const CaseSpec& spec);

/// An engine of run_cases that reads by these policies, for `group` cases at once of at most
/// `max_tokens`.
/// vocab    of the model, for policies that are corrected
/// tail_tokens  of question and answer together, at most
decode::EngineSpec case_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int prefill_chunk, int max_tokens, int group, int vocab = 0,
                                    int tail_tokens = kMaxTailTokens);

}  // namespace tandem::eval
