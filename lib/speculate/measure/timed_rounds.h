#pragma once
#include <functional>
#include <vector>

#include "decode/engine.h"
#include "speculate/reader.h"
#include "speculate/tree/timing.h"

namespace tandem::speculate {

/// The rounds to time of a pair of models.
struct RoundTimesSpec {
  std::vector<int> contexts;    // tokens in the caches, rising
  int largest_tree = 64;        // nodes
  int batch = 1;                // sequences of a forward; times are of a whole one
  decode::SamplerSpec sampler;  // what drawing and verifying cost depends on it
};

/// Sizes of trees that are timed: 1, 2, 3, 4, 6, 8, 12, ... and the largest.
std::vector<int> timed_sizes(int largest_tree);

/// Tokens that a timed text has beyond its context and its tree.
inline constexpr int kTimedTokens = 32;

/// Times of rounds as the engines run them, on texts that are read once a context and forked for
/// every size: the target over trees of n nodes (n = 1: a plain decode step), the draft over a
/// level of w nodes, and the rest of a round. Reports medians.
/// target, draft   with room for 1 + batch sequences of contexts.back() + kTimedTokens tokens, a
///                 tree more, and for rounds with any tree of largest_tree nodes
/// on_progress     called with the share done; returning false interrupts
/// errors          kind interrupted, memory, numeric
TimingTable measure_rounds(Reader target, Reader draft, const RoundTimesSpec& spec,
                           const std::function<bool(double share)>& on_progress = {});

}  // namespace tandem::speculate
