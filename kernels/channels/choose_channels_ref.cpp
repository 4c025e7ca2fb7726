#include "kernels/channels/choose_channels.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tandem {

void choose_channels_ref(const ChooseChannelsParams& p, Range lists) {
  for (int64_t l = lists.begin; l < lists.end; ++l) {
    const float* scores = p.scores + l * p.score_stride;
    std::vector<int32_t> order(static_cast<size_t>(p.n_channels));
    std::iota(order.rbegin(), order.rend(), 0);  // the last of equal ones stays first
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    std::sort(order.begin(), order.begin() + p.keep);
    std::copy_n(order.begin(), p.keep, p.ids + l * p.id_stride);
    p.n[l * p.n_stride] = p.keep;
  }
}

void channels_above_ref(const ChooseChannelsParams& p, Range lists) {
  for (int64_t l = lists.begin; l < lists.end; ++l) {
    int n = 0;
    for (int j = 0; j < p.n_channels; ++j)
      if (p.scores[l * p.score_stride + j] >= p.threshold) p.ids[l * p.id_stride + n++] = j;
    p.n[l * p.n_stride] = n;
    if (p.counted == nullptr) continue;
    p.counted[2 * l] += 1;
    p.counted[2 * l + 1] += n;
  }
}

}  // namespace tandem
