#pragma once
#include <functional>
#include <optional>

#include "speculate/plan/draft_keys.h"
#include "speculate/plan/forward_time.h"
#include "speculate/plan/round_times.h"

namespace tandem::speculate {

/// Who drafts, as far as its cost goes.
struct PlannedDraft {
  std::optional<ModelCosts> model = {};  // none: no forward drafts, as with prompt lookup
  KeyChoice choice = {};
  double refresh_tokens = 0;  // keys are chosen again after as many new tokens; 0 = never
};

/// A batch at a context, in tokens of each sequence.
struct Workload {
  int batch = 1;
  double context = 0;
};

/// What the roofline needs to know of a target and its draft.
struct PlanInputs {
  MachineRates machine;
  ModelCosts target;
  PlannedDraft draft = {};
  int most_gamma = 16;
};

/// Times of rounds by the roofline, for each gamma up to most_gamma.
RoundTimes roofline_times(const PlanInputs& plan, const Workload& work);

/// Times of rounds wherever they are asked for: of the roofline, or from measured ones.
using TimesAt = std::function<RoundTimes(const Workload&)>;

/// The shortest context up to `longest`, in tokens, from which on speculation at its best gamma is
/// faster than plain decoding; none where it is not at `longest`. Found by halving, to 1 %.
std::optional<double> pays_from(const TimesAt& times, double alpha, int batch, double longest);

struct Batches {
  int small = 1, large = 2;
};
/// The same for the context from which on the larger batch gains at least as much as the smaller
/// one: the speed-up no longer falls with the batch.
std::optional<double> inflection_context(const TimesAt& times, double alpha, const Batches& batches,
                                         double longest);

}  // namespace tandem::speculate
