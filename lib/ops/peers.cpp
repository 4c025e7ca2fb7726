#include "ops/peers.h"

#include <algorithm>

#include "base/check.h"
#include "ops/operation.h"

namespace tandem::ops {

void peer_sum(const PeerLinks& links, const Tensor& x, Stream stream) {
  const int64_t n = x.elements();
  for (int64_t at = 0; at < n; at += links.capacity)
    launch(TANDEM_KERNEL(peer_sum),
           {.links = links, .x = x.as<float>() + at, .n = std::min(links.capacity, n - at)},
           stream);
}

void peer_gather(const PeerLinks& links, float* all, int64_t n, Stream stream) {
  for (int64_t at = 0; at < n; at += links.capacity)
    launch(TANDEM_KERNEL(peer_gather),
           {.links = links, .all = all + at, .stride = n, .n = std::min(links.capacity, n - at)},
           stream);
}

void add_parts(const PartLinks& links, const Tensor& x, Stream stream) {
  TANDEM_CHECK(x.elements() % 8 == 0, "add_parts: {} numbers are not a multiple of 8",
               x.elements());
  launch(TANDEM_KERNEL(add_parts), {.links = links, .x = x.as<float>(), .n = x.elements()}, stream);
}

}  // namespace tandem::ops
