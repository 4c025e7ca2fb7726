#include "kernels/channels/channel_norms.h"

#include <algorithm>
#include <cmath>

#include "kernels/reference.h"

namespace tandem {

void channel_norms_cpu(const ChannelNormsParams& p, Range channels) {
  constexpr int kBlock = 64;  // channels whose sums go on together, so that lines are read whole
  for (int64_t begin = channels.begin; begin < channels.end; begin += kBlock) {
    const auto n = std::min<int64_t>(kBlock, channels.end - begin);
    double norms[kBlock];
    std::fill_n(norms, n, 1.0);
    for (int64_t q = 0; q < p.n_parts; ++q) {
      double sums[kBlock] = {};
      const auto add = [&](int64_t j, int64_t i) {
        const double x =
            element(p.weights, p.type,
                    q * p.part_stride + (begin + j) * p.channel_stride + i * p.number_stride);
        sums[j] += x * x;
      };
      if (p.number_stride == 1) {
        for (int64_t j = 0; j < n; ++j)
          for (int64_t i = 0; i < p.width; ++i) add(j, i);
      } else {
        for (int64_t i = 0; i < p.width; ++i)
          for (int64_t j = 0; j < n; ++j) add(j, i);
      }
      for (int64_t j = 0; j < n; ++j) norms[j] *= std::sqrt(sums[j]);
    }
    for (int64_t j = 0; j < n; ++j) p.norms[begin + j] = static_cast<float>(norms[j]);
  }
}

}  // namespace tandem
