#pragma once
// The distribution of samples without replacement, exactly.
#include <cstdint>
#include <vector>

namespace tandem::test {

/// Probability that a sample without replacement from q begins with these tokens; uniform over the
/// unseen once the seen ones hold everything.
inline double chance_of(const std::vector<double>& q, const std::vector<int32_t>& tokens) {
  double chance = 1;
  std::vector<double> rest = q;
  for (size_t i = 0; i < tokens.size(); ++i) {
    double left = 0;
    for (const double p : rest) left += p;
    double& mass = rest[static_cast<size_t>(tokens[i])];
    chance *= left > 0 ? mass / left : 1.0 / static_cast<double>(q.size() - i);
    mass = 0;
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
