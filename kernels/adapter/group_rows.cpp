#include "kernels/adapter/grouped_products.h"

namespace tandem {

void group_rows_cpu(const GroupRowsParams& p, Range /*all*/) {
  for (int r = 0; r < p.n_rows; ++r) p.of_row[r] = -1;
  for (int b = 0; b < p.n_seqs; ++b)
    if (p.row_begin[b + 1] - p.row_begin[b] <= p.max_rows)
      for (int32_t r = p.row_begin[b]; r < p.row_begin[b + 1]; ++r)
        p.of_row[r] = p.of_slot[p.slot[b]];
  int32_t n = 0;
  for (int32_t adapter = 0; adapter < p.n_adapters; ++adapter) {
    int in_group = kGroupRows;
    for (int32_t r = 0; r < p.n_rows; ++r) {
      if (p.of_row[r] != adapter) continue;
      if (in_group == kGroupRows) {
        p.adapter[n++] = adapter;
        for (int i = 0; i < kGroupRows; ++i) p.rows[(n - 1) * kGroupRows + i] = -1;
        in_group = 0;
      }
      p.rows[(n - 1) * kGroupRows + in_group++] = r;
    }
  }
  *p.n = n;
}

}  // namespace tandem
