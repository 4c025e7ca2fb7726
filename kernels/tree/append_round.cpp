#include "kernels/tree/append_round.h"

#include <algorithm>

namespace tandem {

void append_round_cpu(const AppendRoundParams& p, Range seqs) {
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    const Growth g = growth_of(p, seq);
    for (int i = 0; i < g.n; ++i) {
      const int64_t from = int64_t{seq} * p.n_nodes + source_node(p, seq, i);
      const int64_t to = p.chain_row[int64_t{seq} * p.n_chain + g.before + i];
      std::copy_n(p.logits + from * p.vocab, p.vocab, p.chain_logits + to * p.vocab);
    }
    append_tokens(p, seq, g);
  }
}

}  // namespace tandem
