#include "speculate/measure/chain_meter.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "speculate/measure/overlap.h"

namespace tandem::speculate {

void ChainMeter::add(const Round& round, const Tensor& logits) {
  TANDEM_CHECK(logits.device().kind == Device::Kind::cpu, "expected logits on the CPU");
  const VerifyTreesParams p = round.verification(logits, AcceptBy::sequoia);
  const auto vocab = static_cast<size_t>(p.vocab);
  // What a node's child is accepted with, regardless of the draw, and if it is the one that was
  // drawn.
  struct Node {
    int node;
    double overlap = 0, chance = 0;
  };
  std::vector<Node> nodes;
  const size_t first = rounds_.size();
  for (size_t b = 0; b < round.n_seqs(); ++b) {
    if (round.is_within() && !round.took_part(b)) continue;
    const int root = p.node_begin[b];
    size_t n = 0;
    while (n < gamma_ && p.n_children[root + static_cast<int>(n)] == 1) ++n;
    if (n == 0 || (n < gamma_ && !uneven_)) continue;
    for (size_t i = 0; i < n; ++i) nodes.push_back({root + static_cast<int>(i)});
    rounds_.push_back({p.numbers.sequence[b], p.numbers.position[b], std::vector<double>(n),
                       std::vector<double>(n)});
  }
  parallel_for(static_cast<int>(nodes.size()), [&](int i) {
    Node& node = nodes[static_cast<size_t>(i)];
    const auto row = [&](const float* all, int32_t r) {
      return distribution({all + static_cast<size_t>(r) * vocab, vocab}, p.target.temperature);
    };
    const std::vector<double> target = row(p.target_logits, p.target_row[node.node]),
                              draft = row(p.draft_logits, p.draft_row[node.node]);
    const auto drawn = static_cast<size_t>(p.tokens[node.node + 1]);
    node.overlap = overlap(target, draft);
    node.chance = draft[drawn] > 0 ? std::min(1.0, target[drawn] / draft[drawn]) : 0.0;
  });
  size_t at = 0;
  for (size_t r = first; r < rounds_.size(); ++r) {
    Chances& chances = rounds_[r];
    double tested = 1;
    for (size_t i = 0; i < chances.tested.size(); ++i, ++at) {
      chances.tested[i] = tested;
      chances.accepted[i] = tested * nodes[at].overlap;
      tested *= nodes[at].chance;
    }
  }
}

}  // namespace tandem::speculate
