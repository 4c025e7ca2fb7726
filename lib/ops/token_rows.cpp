#include "ops/token_rows.h"

#include <algorithm>
#include <numeric>

namespace tandem::ops {

TokenRows::TokenRows(std::span<const int32_t> tokens) {
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto token_of = [&](int32_t row) { return tokens[static_cast<size_t>(row)]; };
  std::ranges::stable_sort(rows, {}, token_of);
  std::vector<int32_t> begin;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && token_of(rows[i]) == token_of(rows[i - 1])) continue;
    lists.push_back(token_of(rows[i]));
    begin.push_back(static_cast<int32_t>(i));
  }
  n_tokens = static_cast<int>(lists.size());
  begin.push_back(static_cast<int32_t>(rows.size()));
  lists.insert(lists.end(), begin.begin(), begin.end());
  lists.insert(lists.end(), rows.begin(), rows.end());
}

}  // namespace tandem::ops
