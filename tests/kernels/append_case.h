#pragma once
#include <vector>

#include "kernels/tree/append_round.h"

namespace tandem::test {

/// Three chains of up to five tokens and a round within, of trees of four nodes: one that accepts
/// two and has room for all, one that is long enough, and one that has room for one of two, whose
/// bonus has no meaning.
struct AppendCase {
  static constexpr int kVocab = 3, kNodes = 4, kChain = 6;
  std::vector<int32_t> tokens{10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33};
  std::vector<int32_t> path{1, 3, -1, -1, 2, -1, -1, -1, 2, -1, -1, -1}, n_accepted{2, 1, 1};
  std::vector<int32_t> bonus{14, 24, -1};
  std::vector<int32_t> newest{8, 9, 10, 18, 19, 20, 28, 29, 30};
  std::vector<float> logits;  // row * 10 + id
  // Before and after:
  std::vector<int32_t> length{1, 3, 4}, length_want{4, 3, 5};
  std::vector<int32_t> enough{5, 3, 5}, most{5, 5, 5};
  std::vector<int32_t> chain{1, 10, 0, 0, 0, 0, 2, 3, 4, 20, 0, 0, 5, 6, 7, 8, 30, 0};
  std::vector<int32_t> chain_want{1, 10, 11, 13, 14, 0, 2, 3, 4, 20, 0, 0, 5, 6, 7, 8, 30, 32};
  std::vector<int32_t> children{1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0};
  std::vector<int32_t> children_want{1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 0};
  std::vector<int32_t> row;  // by level, as rounds lay chains out
  std::vector<float> chain_logits, chain_logits_want;
  std::vector<int32_t> kept_want{3, 0, 1};
  std::vector<int32_t> newest_want{11, 13, 14, 18, 19, 20, 29, 30, 32};
  std::vector<int32_t> taken_want{2, -1, 1};
  std::vector<int32_t> forced{9, 1, 5}, forced_want{4, 1, 5};
  // Texts of 3, 2 and 3 tokens, and room for the five tokens of their chains.
  std::vector<int32_t> seen_begin{0, 8, 15, 23}, seen = std::vector<int32_t>(23, 0),
                                                 seen_want = seen;

  AppendCase() {
    for (int r = 0; r < 3 * kNodes; ++r)
      for (int id = 0; id < kVocab; ++id) logits.push_back(static_cast<float>(10 * r + id));
    for (int seq = 0; seq < 3; ++seq)
      for (int node = 0; node < kChain; ++node)
        row.push_back(node + 1 < kChain ? 3 * node + seq : -1);
    chain_logits.assign(static_cast<size_t>(3 * (kChain - 1) * kVocab), -1.0F);
    chain_logits_want = chain_logits;
    const auto copied = [&](int seq, int node, int from) {
      for (int id = 0; id < kVocab; ++id)
        chain_logits_want[static_cast<size_t>((3 * node + seq) * kVocab + id)] =
            logits[static_cast<size_t>((seq * kNodes + from) * kVocab + id)];
    };
    copied(0, 1, 0);
    copied(0, 2, 1);
    copied(0, 3, 3);
    copied(2, 4, 0);
    seen_want[2 + 2] = 11, seen_want[2 + 3] = 13, seen_want[2 + 4] = 14;
    seen_want[17 + 5] = 32;
  }

  /// All but the pointers.
  static AppendRoundParams params() {
    AppendRoundParams p{};
    p.n_seqs = 3;
    p.n_nodes = kNodes;
    p.n_chain = kChain;
    p.vocab = kVocab;
    p.max_kept = 3;
    p.is_first = false;
    return p;
  }
};

}  // namespace tandem::test
