#include "speculate/round/round_stats.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::speculate {

void RoundStats::add(const RoundEvent& round) {
  ++rounds;
  drafted += round.drafted;
  accepted += round.accepted;
  offered += round.offered;
  refused += round.refused;
  cut_short += round.accepted < round.offered ? 1 : 0;
  tested += std::min(round.accepted + 1, round.drafted);
  emitted += round.accepted + 1;
  ++accepted_hist[static_cast<size_t>(round.accepted)];
}

void RoundStats::add(const RoundStats& other) {
  rounds += other.rounds;
  drafted += other.drafted;
  accepted += other.accepted;
  offered += other.offered;
  refused += other.refused;
  cut_short += other.cut_short;
  tested += other.tested;
  emitted += other.emitted;
  for (size_t i = 0; i < accepted_hist.size(); ++i) accepted_hist[i] += other.accepted_hist[i];
  draft_s += other.draft_s;
  target_s += other.target_s;
  verify_s += other.verify_s;
  host_s += other.host_s;
}

RoundStats RoundStats::since(const RoundStats& earlier) const {
  RoundStats s = *this;
  s.rounds -= earlier.rounds;
  s.drafted -= earlier.drafted;
  s.accepted -= earlier.accepted;
  s.offered -= earlier.offered;
  s.refused -= earlier.refused;
  s.cut_short -= earlier.cut_short;
  s.tested -= earlier.tested;
  s.emitted -= earlier.emitted;
  for (size_t i = 0; i < s.accepted_hist.size(); ++i)
    s.accepted_hist[i] -= earlier.accepted_hist[i];
  s.draft_s -= earlier.draft_s;
  s.target_s -= earlier.target_s;
  s.verify_s -= earlier.verify_s;
  s.host_s -= earlier.host_s;
  return s;
}

void check_sampler(const decode::SamplerSpec& spec) {
  if (spec.top_logprobs > 0)
    throw recipe_error("output.top_logprobs", "is {}, which speculative decoding does not support",
                       spec.top_logprobs)
        .hint("set it to 0, or use pig-generate");
}

}  // namespace tandem::speculate
