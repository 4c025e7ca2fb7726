#include "kernels/tree/propose_lookup.h"

namespace tandem {
namespace {

Agreement best_agreement(const SeenText& text, int longest) {
  Agreement best{};
  for (int place = text.length - 2; place >= 0 && best.n < longest; --place) {
    if (text.tokens[place] != text.tokens[text.length - 1]) continue;
    const int n = agreeing(text, place, longest);
    if (n > best.n) best = {n, place};
  }
  return best;
}

}  // namespace

void propose_lookup_cpu(const ProposeLookupParams& p, Range seqs) {
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    const SeenText text = text_of(p, seq);
    const Agreement best = best_agreement(text, p.longest);
    const int n = n_following(p, text, best);
    for (int node = 0; node < p.n_nodes; ++node) write_node(p, seq, node, text, best, n);
  }
}

}  // namespace tandem
