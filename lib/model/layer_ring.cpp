#include "model/layer_ring.h"

#include <algorithm>

#include "base/check.h"
#include "base/spread.h"

namespace tandem::model {

std::vector<int> streamed_layers(int n_layers, int n_streamed) {
  TANDEM_CHECK(n_streamed >= 0 && n_streamed <= n_layers, "{} of {} layers streamed", n_streamed,
               n_layers);
  return spread_layers(n_layers, n_streamed);
}

int ring_buffers(int n_streamed) { return std::min(n_streamed, 2); }

}  // namespace tandem::model
