#pragma once
#include <optional>
#include <vector>

namespace tandem::speculate {

/// Times of the parts of rounds at one batch, context and draft, in seconds of a whole batch.
struct RoundTimes {
  double plain_s = 0;  // a decode step
  double draft_s = 0;  // a draft step
  std::vector<double> verify_s =
      {};              // [gamma - 1]: a forward over gamma + 1 tokens of each sequence
  double host_s = 0;   // the rest of a round
  double token_s = 0;  // spread over tokens: choosing the draft's keys again

  int most_gamma() const { return static_cast<int>(verify_s.size()); }
  /// A round of gamma drafted tokens; gamma 0 is a decode step.
  double round_s(int gamma) const;
};

/// A gamma and what follows from it.
struct GammaChoice {
  int gamma = 0;      // 0: plain decoding is faster
  double tokens = 1;  // of a sequence and round, expected
  double round_s = 0;
  double token_s = 0;  // of a sequence
  double speedup = 1;  // over plain decoding
};

GammaChoice at_gamma(const RoundTimes& times, int gamma, double alpha);

/// The chain of one drafted token or more with the highest speed-up, the shortest of equals; gamma
/// 0 where times has none.
GammaChoice best_chain(const RoundTimes& times, double alpha);

/// The same, but gamma 0 where plain decoding is as fast. Where round
/// times grow by equal or rising steps it is the gamma at which the marginal rule stops: one more
/// token as long as alpha^(gamma+1) / tokens(gamma) > (round(gamma+1) - round(gamma)) /
/// round(gamma). All are tried, because the fixed part of a round and the steps of kernels' tiles
/// let that rule stop early.
GammaChoice best_gamma(const RoundTimes& times, double alpha);

/// The lowest alpha that gives a speed-up, and the gamma that needs it; none where no alpha does.
struct LeastAlpha {
  double alpha = 1;
  int gamma = 0;
};
std::optional<LeastAlpha> least_alpha(const RoundTimes& times, double speedup);

}  // namespace tandem::speculate
