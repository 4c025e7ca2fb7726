#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::train {

/// A part of a sample, in tokens.
struct TokenSpan {
  int32_t begin = 0, end = 0;
};

int64_t n_tokens(std::span<const TokenSpan> spans);

/// The tokens of a sample, and those that the loss counts.
struct Sample {
  std::vector<int32_t> ids;
  std::vector<TokenSpan> supervised;  // rising, apart; none includes the first token

  /// Without the tokens from `n` on.
  void truncate(size_t n);
  /// Without those after the last supervised one: nothing is learned from them.
  void drop_tail();
};

}  // namespace tandem::train
