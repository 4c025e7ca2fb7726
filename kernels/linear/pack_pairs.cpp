#include <algorithm>
#include <cstring>

#include "kernels/linear/decode_linear.h"

namespace tandem {

void pack_pairs(const PackPairsParams& p, Range panels) {
  constexpr int kPairs = 16;  // of a step, whose part of a panel stays in L1
  const int64_t panel_numbers = pair_panel_bytes(p.in) / int64_t{sizeof(bf16)};
  for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
    bf16* const to = p.panels + panel * panel_numbers;
    const int n = std::min(kPairPanel, p.n_rows - static_cast<int>(panel) * kPairPanel);
    if (n < kPairPanel || p.in % kPairBlock != 0)
      std::memset(to, 0, static_cast<size_t>(pair_panel_bytes(p.in)));
    for (int first = 0; first < p.in; first += 2 * kPairs) {
      const int end = std::min(first + 2 * kPairs, p.in);
      for (int output = 0; output < n; ++output) {
        const bf16* const row = p.rows + (panel * kPairPanel + output) * p.in;
        bf16* const column = to + output * 2;
        int64_t i = first;
        for (; i + 1 < end; i += 2) std::memcpy(column + i * kPairPanel, row + i, 2 * sizeof(bf16));
        if (i < end) column[i * kPairPanel] = row[i];
      }
    }
  }
}

}  // namespace tandem
