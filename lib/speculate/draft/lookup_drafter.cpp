#include "speculate/draft/lookup_drafter.h"

#include <algorithm>

namespace tandem::speculate {
namespace {

/// What stands behind the latest earlier place of the sequence's last `n` tokens; empty where there
/// is none.
std::span<const int32_t> after_match(std::span<const int32_t> tokens, size_t n) {
  const auto last = tokens.last(n);
  for (size_t end = tokens.size() - 1; end >= n; --end)
    if (std::ranges::equal(tokens.subspan(end - n, n), last)) return tokens.subspan(end);
  return {};
}

}  // namespace

std::span<const int32_t> look_up(std::span<const int32_t> tokens, int longest, int length) {
  std::span<const int32_t> next;
  const size_t most = std::min(static_cast<size_t>(longest), tokens.size() - 1);
  for (size_t n = most; n > 0 && next.empty(); --n) next = after_match(tokens, n);
  return next.first(std::min(next.size(), static_cast<size_t>(length)));
}

LookupDrafter::LookupDrafter(int longest, int length) : longest_(longest) {
  // Powers of two: a GPU records work for each, and chooses its products.
  for (int nodes = 1; nodes < length + 1; nodes *= 2) chains_.push_back(chain_tree(nodes));
  chains_.push_back(chain_tree(length + 1));
}

const TokenTree& LookupDrafter::shape(std::span<const decode::DrawSeq> seqs) {
  found_.clear();
  size_t most = 0;
  for (const decode::DrawSeq& s : seqs) {
    found_.push_back(look_up(s.tokens, longest_, largest().size() - 1));
    most = std::max(most, found_.back().size());
  }
  return *std::ranges::find_if(
      chains_, [&](const TokenTree& chain) { return static_cast<int>(most) < chain.size(); });
}

void LookupDrafter::prepare(Round& round) {
  for (size_t b = 0; b < found_.size(); ++b) {
    std::ranges::copy(found_[b], round.host_tokens(b).begin() + 1);
    round.shorten(b, static_cast<int>(found_[b].size()) + 1);
  }
}

}  // namespace tandem::speculate
