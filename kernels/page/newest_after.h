#pragma once
// For host and device code. No STL.
#include "kernels/page/catch_up.h"

namespace tandem {
namespace {

/// The i-th of the newest tokens of a text after a round: of those before, the accepted path and
/// the bonus together, the last kNewestTokens. A bonus without meaning counts as token 0.
constexpr int32_t newest_after(const LeaveEndsParams& p, int seq, int i) {
  const int64_t tree = int64_t{seq} * p.n_nodes;
  const int n = p.n_accepted[seq];
  const int at = n + 1 + i;  // among all of these
  if (at < kNewestTokens) return p.newest[seq * kNewestTokens + at];
  if (at - kNewestTokens < n) return p.tokens[tree + p.path[tree + at - kNewestTokens]];
  return p.bonus[seq] > 0 ? p.bonus[seq] : 0;
}

}  // namespace
}  // namespace tandem
