#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/gather/key_votes.h"
#include "kernels/reference.h"

namespace tandem {

void key_votes_ref(const KeyVotesParams& p) {
  const int n = p.first_position + p.n_positions;
  std::vector<double> votes(static_cast<size_t>(n)), weights;
  for (int query = 0; query < p.n_positions * p.n_heads; ++query) {
    weights.resize(static_cast<size_t>(p.first_position + query / p.n_heads) + 1);
    for (size_t t = 0; t < weights.size(); ++t) {
      const int64_t page = p.pages[t / kPageTokens];
      const int64_t row =
          (page * p.n_kv_heads + p.kv_head) * kPageTokens + static_cast<int64_t>(t % kPageTokens);
      double dot = 0;
      for (int c = 0; c < p.d; ++c)
        dot += double{p.q[int64_t{query} * p.d + c]} * element(p.k_pool, p.dtype, row * p.d + c);
      weights[t] = p.scale * dot;
    }
    const double top = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - top);
    for (size_t t = 0; t < weights.size(); ++t) votes[t] += weights[t] / sum;
    if (p.lse != nullptr) p.lse[query] = static_cast<float>(top + std::log(sum));
  }
  std::copy(votes.begin(), votes.end(), p.votes);
}

}  // namespace tandem
