#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::ops {

/// Rows by the token that each is of.
struct TokenRows {
  explicit TokenRows(std::span<const int32_t> tokens);
  /// Of `lists`, at most.
  static size_t most_numbers(size_t n_rows) { return 3 * n_rows + 1; }

  int n_tokens = 0;  // that differ
  /// [n_tokens] tokens, ascending; [n_tokens + 1] where each one's rows begin; [rows] these,
  /// ascending.
  std::vector<int32_t> lists;
};

}  // namespace tandem::ops
