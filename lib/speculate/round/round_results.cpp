#include "speculate/round/round_results.h"

#include "ops/sampling.h"

namespace tandem::speculate {

std::span<const int32_t> RoundResults::path(size_t b) const {
  return {at_.path + b * n_nodes(), static_cast<size_t>(at_.n_accepted[b])};
}

std::vector<decode::Drawn> RoundResults::drawn(size_t b) const {
  ops::check_valid({at_.bonus + b, 1});
  const int32_t* tokens = at_.tokens + b * n_nodes();
  std::vector<decode::Drawn> drawn;
  const auto add = [&](int32_t id) {
    const float* logprobs = at_.logprobs;
    drawn.push_back({.id = id,
                     .logprob = logprobs == nullptr ? 0 : logprobs[b * n_nodes() + drawn.size()],
                     .top = {}});
  };
  for (const int32_t node : path(b)) add(tokens[node]);
  add(at_.bonus[b]);
  return drawn;
}

double RoundResults::seconds(Moment from, Moment to) const {
  return 1e-9 * static_cast<double>(at_.clock[to] - at_.clock[from]);
}

double RoundResults::seconds_within(int turn, Moment from, Moment to) const {
  const uint64_t* const clock = at_.clocks + turn * n_moments;
  return 1e-9 * static_cast<double>(clock[to] - clock[from]);
}

}  // namespace tandem::speculate
