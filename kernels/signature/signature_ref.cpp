#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "base/convert.h"
#include "kernels/signature/signature.h"

namespace tandem {

void signature_scan_ref(const SignatureScanParams& p, Range keys) {
  for (int i = keys.begin; i < keys.end; ++i) {
    const int64_t group = i / kSignatureGroup;
    const uint32_t* key = p.signatures + group * p.words * kSignatureGroup + i % kSignatureGroup;
    for (int q = 0; q < p.n_queries; ++q) {
      const uint32_t* query = p.queries + static_cast<int64_t>(q) * p.words;
      int more_equal = 16 * p.words;
      for (int w = 0; w < p.words; ++w)
        more_equal -= std::popcount(key[w * kSignatureGroup] ^ query[w]);
      const auto x = static_cast<float>(more_equal), y = x * x;
      const auto& [scale, c1, c0] = p.similarity;
      p.scores[q * p.score_stride + i] = (x * (to_float(p.norms[i]) * scale)) * ((y + c1) * y + c0);
    }
  }
}

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

}  // namespace tandem
