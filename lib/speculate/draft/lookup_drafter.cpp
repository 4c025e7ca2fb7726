#include "speculate/draft/lookup_drafter.h"

#include <algorithm>

namespace tandem::speculate {
namespace {

/// What stands behind the latest earlier place of the text's last `n` tokens; empty where there is
/// none.
std::span<const int32_t> after_match(std::span<const int32_t> text, size_t n) {
  const auto last = text.last(n);
  for (size_t end = text.size() - 1; end >= n; --end)
    if (std::ranges::equal(text.subspan(end - n, n), last)) return text.subspan(end);
  return {};
}

}  // namespace

std::span<const int32_t> look_up(std::span<const int32_t> text, int longest, int length) {
  std::span<const int32_t> next;
  const size_t most = std::min(static_cast<size_t>(longest), text.size() - 1);
  for (size_t n = most; n > 0 && next.empty(); --n) next = after_match(text, n);
  return next.first(std::min(next.size(), static_cast<size_t>(length)));
}

LookupDrafter::LookupDrafter(int longest, int length) : longest_(longest) {
  for (int n = 0; n <= length; ++n) chains_.push_back(chain_tree(n + 1));
}

std::span<const Proposal> LookupDrafter::propose(std::span<const decode::DrawSeq> seqs) {
  proposals_.clear();
  for (const decode::DrawSeq& s : seqs) {
    const std::span<const int32_t> next = look_up(s.tokens, longest_, max_depth());
    Proposal& p = proposals_.emplace_back();
    p.tree = &chains_[next.size()];
    p.tokens.push_back(s.tokens.back());
    p.tokens.insert(p.tokens.end(), next.begin(), next.end());
  }
  return proposals_;
}

}  // namespace tandem::speculate
