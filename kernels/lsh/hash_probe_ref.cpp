#include <algorithm>

#include "kernels/lsh/hash_tables.h"

namespace tandem {

int hash_probe_ref(const HashProbeParams& p) {
  const int64_t buckets = int64_t{1} << p.code_bits;
  std::fill_n(p.counters, p.block.n_tokens, uint8_t{0});
  for (int t = 0; t < p.tables; ++t) {
    const uint16_t* offsets = p.block.offsets + t * (buckets + 1) + p.codes[t];
    const uint16_t* ids = p.block.ids + static_cast<int64_t>(t) * p.block.capacity;
    for (int i = offsets[0]; i < offsets[1]; ++i)
      if (p.counters[ids[i]] < 255) ++p.counters[ids[i]];
  }
  int n = 0;
  for (int i = 0; i < p.block.n_tokens; ++i)
    if (p.counters[i] >= p.min_hits) p.ids[n++] = p.first_id + i;
  return n;
}

}  // namespace tandem
