#include "model/adapters/low_rank_merge.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/adapter/weight_norms.h"

namespace tandem::model {

void merge_low_rank(std::span<float> rows, const LowRankDelta& d) {
  const auto in = static_cast<int64_t>(d.a.size()) / d.rank;
  const auto n = static_cast<int64_t>(d.b.size()) / d.rank;
  parallel_ranges(static_cast<int>(n), 16, [&](int begin, int end) {
    for (int64_t r = begin; r < end; ++r) {
      float* const row = rows.data() + r * in;
      for (int64_t k = 0; k < d.rank; ++k) {
        const float by = d.gamma * d.b[static_cast<size_t>(r * d.rank + k)];
        const float* const a = d.a.data() + k * in;
        for (int64_t c = 0; c < in; ++c) row[c] += by * a[c];
      }
      if (d.magnitude.empty()) continue;
      double squares = 0;
      for (int64_t c = 0; c < in; ++c) squares += double{row[c]} * row[c];
      const double norm = std::max(std::sqrt(squares), double{kLeastWeightNorm});
      const auto scale = static_cast<float>(d.magnitude[static_cast<size_t>(r)] / norm);
      for (int64_t c = 0; c < in; ++c) row[c] *= scale;
    }
  });
}

}  // namespace tandem::model
