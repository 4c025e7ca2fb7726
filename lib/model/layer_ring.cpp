#include "model/layer_ring.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::model {

std::vector<int> streamed_layers(int n_layers, int n_streamed) {
  TANDEM_CHECK(n_streamed >= 0 && n_streamed <= n_layers, "{} of {} layers streamed", n_streamed,
               n_layers);
  std::vector<int> layers;
  for (int i = 0; i < n_streamed; ++i)
    layers.push_back(static_cast<int>(int64_t{i} * n_layers / n_streamed));
  return layers;
}

int ring_buffers(int n_streamed) { return std::min(n_streamed, 2); }

}  // namespace tandem::model
