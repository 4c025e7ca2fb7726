#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "decode/engine.h"
#include "eval/settings.h"
#include "eval/tasks.h"

namespace tandem::eval {

/// What one policy made of one case.
struct Outcome {
  int policy = 0;  // index into the engine's caches
  Protocol protocol = Protocol::dense;
  Score score = Score::forced;
  bool correct = false;
};

struct CaseSpec {
  std::vector<Protocol> protocols;
  std::vector<Score> scores;
};

/// Judges all policies of the engine on one case, from one dense prefill: policy 0 (full attention)
/// prefills, and each policy continues a fork of it.
///
/// sparse   question and answer tokens are decoded with the policy.
/// dense    the question is prefilled too; only answer tokens are decoded with the policy. The row
///          that predicts the first of them is the last of the prompt, hence dense and the same for
///          all policies.
///
/// Teacher forcing runs question and answer as one chunk of rows; a policy's rules hold row by row.
/// cost     one prefill, and a few rows for each policy, protocol and score
/// errors   kind memory, numeric
std::vector<Outcome> run_case(decode::Engine& engine, const Case& c, const CaseSpec& spec);

/// Engine that run_case needs for cases of at most `max_tokens`.
decode::EngineSpec case_engine_spec(const std::vector<NamedPolicy>& policies, DType compute,
                                    int prefill_chunk, int max_tokens);

/// Share of a text of `length` tokens whose keys one new token reads, mean over layers.
double keys_read_share(const recipe::Cache& cache, const model::ModelConfig& config, int length);

}  // namespace tandem::eval
