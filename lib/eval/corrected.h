#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "decode/generate.h"
#include "eval/tasks.h"
#include "speculate/round/floor_keys.h"
#include "speculate/round/rounds.h"

namespace tandem::eval {

/// Section `spec` of a policy: answers are drafted by it, and full attention with all channels
/// corrects them in rounds.
struct Correction {
  int gamma = 0;
  speculate::VerifyChoice verify = speculate::VerifyChoice::floor_or_argmax;
  speculate::FloorKeys floors;

  template <class V>
  void fields(V& v) {
    v("gamma", gamma, recipe::between(0, 256).unit("tokens"),
      "tokens that the policy drafts before the full model corrects them, 0 = no correction");
    v("verify", verify,
      "acceptance rule: match keeps the full model's own tokens. The lossy rules floor, "
      "floor_or_argmax and typical keep tokens that are likely enough");
    floors.fields(v);
  }
  bool any() const { return gamma > 0; }
  bool operator==(const Correction&) const = default;
};

/// What rounds did.
struct RoundCounts {
  int64_t rounds = 0, emitted = 0, accepted = 0, offered = 0, cut_short = 0;
  double density = 0;  // share of the parameters that a draft uses
  bool lossy = false;

  void add(const RoundCounts& other);
  // Sirius' figures (arXiv 2409.03856): tokens a round, those that it could have given,
  // parameters used a token, tokens given up where any were.
  double advance() const;
  double most() const;
  double apu() const;
  double rollback() const;
};

/// Greedy text of one policy's drafts and their correction.
class Corrected {
 public:
  /// engine   with room for correction_needs; its first cache reads all
  /// cache    of the policy, which has FFN channels
  Corrected(decode::Engine& engine, int cache, const Correction& by);

  /// The tokens after a request's, as `how` ends them: the last may be one of its stop ids.
  Ids write(const decode::Request& request, decode::GenerateSpec how);
  /// Of the last text.
  const RoundCounts& counts() const { return counts_; }

 private:
  decode::Engine& engine_;
  int channels_;
  std::unique_ptr<speculate::Rounds> rounds_;
  RoundCounts counts_;
};

/// Room in an engine for such rounds of one sequence; none where `by` corrects nothing.
speculate::RoundNeeds correction_needs(const Correction& by, int vocab);
/// Adds what they hold beyond it.
void plan_correction(const Correction& by, const decode::EngineSpec& spec,
                     const model::ModelConfig& config, MemoryPlan& plan);

}  // namespace tandem::eval
