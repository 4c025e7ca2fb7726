#include "speculate/draft/lookup_drafter.h"

#include <algorithm>

namespace tandem::speculate {
LookupDrafter::LookupDrafter(int longest, int length) : longest_(longest) {
  // Powers of two: a GPU records work for each, and chooses its products.
  for (int nodes = 1; nodes < length + 1; nodes *= 2) chains_.push_back(chain_tree(nodes));
  chains_.push_back(chain_tree(length + 1));
}

const TokenTree& LookupDrafter::shape(std::span<const decode::DrawSeq> seqs) {
  found_.clear();
  size_t most = 0;
  for (const decode::DrawSeq& s : seqs) {
    LookupIndex& index = indexes_[s.slot];
    index.extend(s.tokens);
    found_.push_back(index.find(s.tokens, longest_, largest().size() - 1));
    most = std::max(most, found_.back().size());
  }
  return *std::ranges::find_if(
      chains_, [&](const TokenTree& chain) { return static_cast<int>(most) < chain.size(); });
}

void LookupDrafter::read(std::span<const decode::DrawSeq> seqs) {
  for (const decode::DrawSeq& s : seqs) indexes_[s.slot].extend(s.tokens);
}

void LookupDrafter::prepare(Round& round) {
  for (size_t b = 0; b < found_.size(); ++b) {
    std::ranges::copy(found_[b], round.host_tokens(b).begin() + 1);
    round.shorten(b, static_cast<int>(found_[b].size()) + 1);
  }
}

}  // namespace tandem::speculate
