#pragma once
// The distribution of samples without replacement, exactly.
#include <cstdint>
#include <vector>

namespace tandem::test {

/// Probability that a sample without replacement from q begins with these tokens. Once the drawn
/// ones hold all of q, the others follow by `rest`, and once they hold all of that, or if it is
/// empty, uniformly.
inline double chance_of(const std::vector<double>& q, const std::vector<int32_t>& tokens,
                        std::vector<double> rest = {}) {
  double chance = 1;
  std::vector<double> kept = q;
  rest.resize(q.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<size_t>(tokens[i]);
    double of_kept = 0, of_rest = 0;
    for (size_t x = 0; x < q.size(); ++x) of_kept += kept[x], of_rest += rest[x];
    chance *= of_kept > 0   ? kept[token] / of_kept
              : of_rest > 0 ? rest[token] / of_rest
                            : 1.0 / static_cast<double>(q.size() - i);
    kept[token] = rest[token] = 0;
  }
  return chance;
}

/// Every list of k different tokens below n.
inline std::vector<std::vector<int32_t>> ordered_lists(int n, int k) {
  std::vector<std::vector<int32_t>> lists{{}};
  for (int length = 0; length < k; ++length) {
    std::vector<std::vector<int32_t>> longer;
    for (const auto& list : lists)
      for (int token = 0; token < n; ++token) {
        bool used = false;
        for (const int32_t t : list) used = used || t == token;
        if (used) continue;
        longer.push_back(list);
        longer.back().push_back(token);
      }
    lists = std::move(longer);
  }
  return lists;
}

}  // namespace tandem::test
