#pragma once
#include <nlohmann/json_fwd.hpp>

#include "speculate/plan/gamma_choice.h"
#include "speculate/plan/hardware.h"
#include "speculate/plan/named_draft.h"

namespace tandem::speculate {

/// What a prediction is asked.
struct PredictionSpec {
  Workload work;
  int gamma = 0;         // 0: the best one
  int most_gamma = 16;   // of those that are tried
  double speedup = 1;    // wanted: for the least alpha and the critical context
  int new_tokens = 96;   // for the room of a sequence
  int longest = 131072;  // context up to which speculation may begin to pay
  DType dtype = DType::bf16;
};

/// What rounds of one draft cost and gain, by calculation.
struct Prediction {
  AssumedAlpha alpha;  // value 0 for kind none
  StepCost cost;
  std::string times_from;  // "roofline", "interpolated" or "fitted"
  GammaChoice chain;       // of one drafted token or more, whether it pays or not
  GammaChoice choice;      // the same, or plain decoding where that is faster
  std::optional<LeastAlpha> least;
  std::optional<double> row_keys;   // tokens whose keys take as long to read as a row to compute
  std::optional<double> critical;   // context, in tokens, for an unbounded batch: self-drafts
  std::optional<double> pays_from;  // context at this batch
  /// Context from which on the largest batch that fits gains as much as this one.
  std::optional<double> inflection;
  std::optional<int> most_sequences;

  double decode_tok_s(int batch) const { return 1e3 * batch / choice.token_ms; }
  double plain_tok_s(int batch) const { return 1e3 * batch / cost.plain_ms(); }
  /// The chain's forward that verifies; none for kind none.
  std::optional<double> verify_ms() const;
};

/// errors   kind recipe: no acceptance is known; kind input: a draft model or a timing table
Prediction predict(const HardwareSection& hardware, const ModelCosts& target,
                   const NamedDraft& draft, const PredictionSpec& spec);

/// Group `predicted` of a record.
nlohmann::ordered_json prediction_json(const Prediction& p, int batch);

}  // namespace tandem::speculate
