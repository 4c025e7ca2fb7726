#include "kv/step.h"

#include <algorithm>

namespace tandem::kv {

ops::StepArrays Step::arrays() const {
  ops::StepArrays a{.n_seqs = n_seqs,
                    .n_rows = n_rows,
                    .mask_words = mask_words,
                    .slot = slot.data(),
                    .row_begin = row_begin.data(),
                    .base = base.data(),
                    .pos = pos.data(),
                    .row_page = row_page.data(),
                    .row_in_page = row_in_page.data(),
                    .tree_mask = tree_mask.empty() ? nullptr : tree_mask.data()};
  for (int b = 0; b < n_seqs; ++b) a.max_rows_a_seq = std::max(a.max_rows_a_seq, rows_of(b));
  return a;
}

}  // namespace tandem::kv
