#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/selection/select_top.h"

namespace tandem {

int select_top_ref(const SelectTopParams& p) {
  const int m = std::min(p.m, p.n);
  std::vector<int32_t> order(static_cast<size_t>(p.n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return p.scores[a] > p.scores[b]; });
  constexpr float kInf = std::numeric_limits<float>::infinity();
  *p.threshold = m == p.n ? -kInf : m == 0 ? kInf : p.scores[order[static_cast<size_t>(m) - 1]];
  std::sort(order.begin(), order.begin() + m);
  for (int i = 0; i < m; ++i) p.ids[i] = p.first_id + order[static_cast<size_t>(i)];
  return m;
}

int select_reached_ref(const SelectReachedParams& p) {
  int n = 0;
  for (int i = 0; i < p.n; ++i)
    if (p.scores[i] >= p.floor) p.ids[n++] = i;
  return n;
}

}  // namespace tandem
