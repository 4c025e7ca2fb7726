#include "kernels/page/query_ring.h"

#include <algorithm>
#include <cstring>

namespace tandem {

void write_queries_cpu(const WriteQueriesParams& p, Range seqs) {
  const int64_t bytes = p.rings.row_bytes;
  for (int s = seqs.begin; s < seqs.end; ++s) {
    const int first = p.row_begin[s], n = p.row_begin[s + 1] - first;
    const int token = p.base[s] + (p.tentative == nullptr ? 0 : p.tentative[s]);
    for (int i = std::max(0, n - p.rings.capacity); i < n; ++i)
      std::memcpy(
          static_cast<char*>(p.rings.rows) + ring_offset(p.rings, p.slot[s], p.layer, token + i),
          static_cast<const char*>(p.q) + (first + i) * bytes, static_cast<size_t>(bytes));
  }
}

void move_queries_cpu(const MoveQueriesParams& p, Range seqs) {
  for (int s = seqs.begin; s < seqs.end; ++s) {
    const int root = p.position[s] - 1;
    for (int i = 0; i < std::min(p.n_accepted[s], p.max_moves); ++i) {
      const int node = p.path[int64_t{s} * p.n_nodes + i];
      if (node >= p.n_nodes_held || node == i + 1) continue;
      // Nodes of a path ascend, so none is written over before it has moved.
      for (int layer = 0; layer < p.rings.n_layers; ++layer) {
        auto* const rows = static_cast<char*>(p.rings.rows);
        std::memcpy(rows + ring_offset(p.rings, p.slot[s], layer, root + i + 1),
                    rows + ring_offset(p.rings, p.slot[s], layer, root + node),
                    static_cast<size_t>(p.rings.row_bytes));
      }
    }
  }
}

}  // namespace tandem
