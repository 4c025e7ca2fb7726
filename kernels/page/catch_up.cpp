#include "kernels/page/catch_up.h"

#include <algorithm>

#include "kernels/page/newest_after.h"

namespace tandem {

void leave_ends_cpu(const LeaveEndsParams& p, Range seqs) {
  if (seqs.begin == 0 && p.ends.turn != nullptr) *p.ends.turn ^= 1;
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    p.ends.kept[seq] = p.n_accepted[seq] + 1;
    for (int i = 0; i < kNewestTokens; ++i)
      p.ends.newest[seq * kNewestTokens + i] = newest_after(p, seq, i);
  }
}

void catch_up_cpu(const CatchUpParams& p, Range seqs) {
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    const int from = p.prior[seq];
    if (from < 0) continue;
    const int32_t kept = p.ends.kept[from];
    const int32_t* const newest = p.ends.newest + int64_t{from} * kNewestTokens;
    p.tokens[int64_t{seq} * p.n_nodes] = newest[kNewestTokens - 1];
    std::copy_n(newest, kNewestTokens, p.newest + int64_t{seq} * kNewestTokens);
    p.position[seq] += kept;
    for (int i = 0; p.unread != nullptr && i < p.n_unread; ++i) {
      const int32_t id = newest[kNewestTokens - p.n_unread + i];
      p.unread[seq * p.n_unread + i] = id < p.n_known_ids ? id : 0;
    }
    for (int s = 0; s < p.n_steps; ++s) {
      const StepRows& step = p.steps[s];
      const int64_t table = int64_t{step.slot[seq]} * step.max_pages;
      step.base[seq] += kept;
      const int first = step.base[seq] + (step.tentative == nullptr ? 0 : step.tentative[seq]);
      for (int i = 0; i < step.rows_each; ++i) {
        const int row = seq * step.rows_each + i;
        step.pos[row] += kept;
        const int64_t page = table + (first + i) / kPageTokens;
        step.row_page[row] = step.page_table[page];
        if (step.near_page != nullptr) step.near_page[row] = step.near_table[page];
        step.row_in_page[row] = (first + i) % kPageTokens;
      }
    }
  }
}

}  // namespace tandem
