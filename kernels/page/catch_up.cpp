#include "kernels/page/catch_up.h"

#include <algorithm>

namespace tandem {

void leave_ends_cpu(const LeaveEndsParams& p, Range seqs) {
  if (seqs.begin == 0) *p.ends.turn ^= 1;
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    const int64_t tree = int64_t{seq} * p.n_nodes;
    const int n = p.n_accepted[seq];
    p.ends.kept[seq] = n + 1;
    p.ends.last[2 * seq] = p.tokens[tree + (n > 0 ? p.path[tree + n - 1] : 0)];
    p.ends.last[2 * seq + 1] = std::max(p.bonus[seq], 0);
  }
}

void catch_up_cpu(const CatchUpParams& p, Range seqs) {
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    const int from = p.prior[seq];
    if (from < 0) continue;
    const int32_t kept = p.ends.kept[from];
    p.tokens[int64_t{seq} * p.n_nodes] = p.ends.last[2 * from + 1];
    p.position[seq] += kept;
    for (int i = 0; p.unread != nullptr && i < p.n_unread; ++i) {
      const int32_t id = p.ends.last[2 * from + 2 - p.n_unread + i];
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
