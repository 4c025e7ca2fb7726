#include "kernels/page/catch_up.h"

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
    move_text_on(p, seq, from, kept);
    for (int s = 0; s < p.n_steps; ++s) {
      p.steps[s].base[seq] += kept;
      move_rows_on(p.steps[s], seq, kept, p.steps[s].base[seq], 0, 1);
    }
  }
}

}  // namespace tandem
