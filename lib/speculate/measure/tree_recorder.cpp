#include "speculate/measure/tree_recorder.h"

#include "base/check.h"
#include "kernels/tree/ref_distributions.h"
#include "ops/sampling.h"

namespace tandem::speculate {

void TreeRecorder::add(const Round& round, const Tensor& logits) {
  TANDEM_CHECK(logits.device().kind == Device::Kind::cpu, "expected logits on the CPU");
  const VerifyTreesParams params = round.verification(logits, AcceptBy::traversal);
  for (size_t b = 0; b < round.n_seqs(); ++b) {
    const RefDistributions tree(params, static_cast<int>(b));
    const std::vector<NodeChances> chances = node_chances(tree, tree.n_nodes());
    const int32_t is_valid = chances.empty() ? kInvalidToken : 0;
    ops::check_valid({&is_valid, 1});
    rounds_.add(params.numbers.sequence[b], chances);
  }
}

}  // namespace tandem::speculate
