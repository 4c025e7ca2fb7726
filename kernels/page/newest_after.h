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

/// Moves the text of a sequence on by what the round before it left: `from`, and the tokens that it
/// kept.
constexpr void move_text_on(const CatchUpParams& p, int seq, int from, int kept) {
  const int32_t* const newest = p.ends.newest + int64_t{from} * kNewestTokens;
  p.tokens[int64_t{seq} * p.n_nodes] = newest[kNewestTokens - 1];
  for (int i = 0; i < kNewestTokens; ++i) p.newest[seq * kNewestTokens + i] = newest[i];
  p.position[seq] += kept;
  for (int i = 0; p.unread != nullptr && i < p.n_unread; ++i) {
    const int32_t id = newest[kNewestTokens - p.n_unread + i];
    p.unread[seq * p.n_unread + i] = id < p.n_known_ids ? id : 0;
  }
}

/// Moves every `apart`-th row of a sequence of a step on, from the i-th.
/// base     tokens of the sequence before the step, moved on
constexpr void move_rows_on(const StepRows& step, int seq, int kept, int base, int i, int apart) {
  const int64_t table = int64_t{step.slot[seq]} * step.max_pages;
  const int first = base + (step.tentative == nullptr ? 0 : step.tentative[seq]);
  for (; i < step.rows_each; i += apart) {
    const int row = seq * step.rows_each + i;
    step.pos[row] += kept;
    const int64_t page = table + (first + i) / kPageTokens;
    step.row_page[row] = step.page_table[page];
    for (const OtherPages& o : step.others)
      if (o.row_page != nullptr) o.row_page[row] = o.table[page];
    step.row_in_page[row] = (first + i) % kPageTokens;
  }
}

}  // namespace
}  // namespace tandem
