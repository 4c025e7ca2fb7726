#include "spec/round_stats.h"

#include "base/error.h"

namespace tandem::spec {

void RoundStats::add(const RoundEvent& round) {
  ++rounds;
  drafted += round.drafted;
  accepted += round.accepted;
  emitted += round.accepted + 1;
  ++accepted_hist[static_cast<size_t>(round.accepted)];
}

void check_sampler(const decode::SamplerSpec& spec) {
  if (spec.top_logprobs > 0)
    throw recipe_error("output.top_logprobs", "is {}, but speculation reports no alternatives",
                       spec.top_logprobs)
        .hint("leave it 0, or take pig-generate");
}

ops::VerifyRule rule_of(const ops::SampleRule& target, AcceptBy accept_by) {
  ops::VerifyRule rule{.target = target, .draft = {}, .accept_by = accept_by};
  rule.draft.temperature = target.temperature;
  return rule;
}

}  // namespace tandem::spec
