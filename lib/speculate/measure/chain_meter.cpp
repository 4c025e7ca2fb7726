#include "speculate/measure/chain_meter.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "speculate/measure/overlap.h"

namespace tandem::speculate {

void ChainMeter::add(const Round& round, const Tensor& logits) {
  TANDEM_CHECK(logits.device().kind == Device::Kind::cpu, "logits of a GPU");
  const VerifyTreesParams p = round.verification(logits, AcceptBy::sequoia);
  const auto vocab = static_cast<size_t>(p.vocab);
  const size_t first = rounds_.size();
  std::vector<int> begin;  // of the round's trees
  for (size_t b = 0; b < round.n_seqs(); ++b) {
    const std::span children(p.n_children + p.node_begin[b], gamma_);
    if (std::ranges::any_of(children, [](int32_t n) { return n != 1; })) continue;
    begin.push_back(p.node_begin[b]);
    rounds_.push_back({std::vector<double>(gamma_), std::vector<double>(gamma_)});
  }
  // What a node's child is accepted with, regardless of the draw, and if it is the one that was
  // drawn.
  struct Node {
    double overlap, chance;
  };
  std::vector<Node> nodes(begin.size() * gamma_);
  parallel_for(static_cast<int>(nodes.size()), [&](int i) {
    const auto node = static_cast<size_t>(begin[static_cast<size_t>(i) / gamma_]) +
                      static_cast<size_t>(i) % gamma_;
    const auto row = [&](const float* all, int32_t r) {
      return distribution({all + static_cast<size_t>(r) * vocab, vocab}, p.target.temperature);
    };
    const std::vector<double> target = row(p.target_logits, p.target_row[node]),
                              draft = row(p.draft_logits, p.draft_row[node]);
    const auto drawn = static_cast<size_t>(p.tokens[node + 1]);
    nodes[static_cast<size_t>(i)] = {
        overlap(target, draft),
        draft[drawn] > 0 ? std::min(1.0, target[drawn] / draft[drawn]) : 0.0};
  });
  for (size_t r = 0; r < begin.size(); ++r) {
    Chances& chances = rounds_[first + r];
    double tested = 1;
    for (size_t i = 0; i < gamma_; ++i) {
      const Node& node = nodes[r * gamma_ + i];
      chances.tested[i] = tested;
      chances.accepted[i] = tested * node.overlap;
      tested *= node.chance;
    }
  }
}

}  // namespace tandem::speculate
