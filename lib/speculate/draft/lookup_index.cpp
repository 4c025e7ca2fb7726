#include "speculate/draft/lookup_index.h"

#include <algorithm>
#include <utility>

namespace tandem::speculate {
namespace {

uint64_t pair_of(int32_t first, int32_t second) {
  return uint64_t{static_cast<uint32_t>(first)} << 32 | static_cast<uint32_t>(second);
}

/// Tokens that agree before and at two places, `longest` at most.
int agreement(std::span<const int32_t> tokens, int32_t place, int32_t last, int longest) {
  const int most = std::min(longest, place + 1);
  int n = 0;
  while (n < most &&
         tokens[static_cast<size_t>(place - n)] == tokens[static_cast<size_t>(last - n)])
    ++n;
  return n;
}

}  // namespace

void LookupIndex::extend(std::span<const int32_t> tokens) {
  const auto take = [](auto& last, auto key, size_t place) {
    const auto [it, is_new] = last.try_emplace(key, static_cast<int32_t>(place));
    return is_new ? kNone : std::exchange(it->second, static_cast<int32_t>(place));
  };
  for (size_t i = before_.size(); i < tokens.size(); ++i) {
    before_.push_back(take(last_, tokens[i], i));
    pair_before_.push_back(i == 0 ? kNone : take(last_pair_, pair_of(tokens[i - 1], tokens[i]), i));
  }
}

std::span<const int32_t> LookupIndex::find(std::span<const int32_t> tokens, int longest,
                                           int length) const {
  if (tokens.empty() || longest < 1) return {};
  const auto last = static_cast<int32_t>(tokens.size()) - 1;
  int32_t found = before_.back();
  int best = 1;
  if (longest > 1)
    for (int32_t place = pair_before_.back(); place >= 0 && best < longest;
         place = pair_before_[static_cast<size_t>(place)])
      if (const int n = agreement(tokens, place, last, longest); n > best) found = place, best = n;
  if (found < 0) return {};
  const auto next = tokens.subspan(static_cast<size_t>(found) + 1);
  return next.first(std::min(next.size(), static_cast<size_t>(length)));
}

}  // namespace tandem::speculate
