#include "kernels/attention/attention_backward.h"

#include <algorithm>

#include "base/parallel.h"
#include "kernels/attention/attention_backward_scratch.h"
#include "kernels/cpu_table.h"

namespace tandem {

size_t attention_backward_scratch_bytes(int max_rows, int group, int head_dim) {
  return static_cast<size_t>(BackwardScratch(max_rows, group, head_dim).floats()) * sizeof(float);
}

size_t attention_backward_workspace_bytes(int max_rows, int group, int head_dim, int threads) {
  return static_cast<size_t>(threads) * attention_backward_scratch_bytes(max_rows, group, head_dim);
}

void attention_backward_cpu(const AttentionBackwardParams& p, void* workspace) {
  const int group = p.n_heads / p.n_kv_heads, n_tasks = p.n_seqs * p.n_kv_heads;
  int max_rows = 0;
  for (int s = 0; s < p.n_seqs; ++s)
    max_rows = std::max(max_rows, p.row_begin[s + 1] - p.row_begin[s]);
  const size_t bytes = attention_backward_scratch_bytes(max_rows, group, p.head_dim);
  const auto body = cpu_table().attention_backward;
  parallel_for(n_tasks, [&](int i, int thread) {
    body(p, {i, i + 1}, static_cast<char*>(workspace) + static_cast<size_t>(thread) * bytes);
  });
}

}  // namespace tandem
