#include "kernels/page/page.h"

#include <cstring>

namespace tandem {
namespace {

/// Bytes of one page of one layer.
int64_t page_bytes(const PagePools& pools) {
  return int64_t{pools.n_kv_heads} * kPageTokens * pools.row_bytes;
}

/// Of one layer, of K or V.
char* pool_of(const PagePools& pools, int plane) {
  return static_cast<char*>(plane % 2 == 0 ? pools.k : pools.v) +
         int64_t{plane / 2} * pools.n_pages * page_bytes(pools);
}

}  // namespace

void copy_page_cpu(const CopyPageParams& p, Range planes) {
  if (p.from == p.to) return;
  const int64_t bytes = page_bytes(p.pools);
  for (int plane = planes.begin; plane < planes.end; ++plane) {
    char* pool = pool_of(p.pools, plane);
    std::memcpy(pool + p.to * bytes, pool + p.from * bytes, static_cast<size_t>(bytes));
  }
}

void move_tokens_cpu(const MoveTokensParams& p, Range planes) {
  const int64_t row = p.pools.row_bytes;
  for (int plane = planes.begin; plane < planes.end; ++plane) {
    char* pool = pool_of(p.pools, plane);
    const auto at = [&](int32_t token, int head) {
      return pool + token / kPageTokens * page_bytes(p.pools) +
             (int64_t{head} * kPageTokens + token % kPageTokens) * row;
    };
    for (int i = 0; i < p.n_moves; ++i) {
      const int32_t from = p.from_token[i], to = p.to_token[i];
      if (from < 0 || from == to) continue;
      for (int head = 0; head < p.pools.n_kv_heads; ++head)
        std::memcpy(at(to, head), at(from, head), static_cast<size_t>(row));
    }
  }
}

void path_moves_cpu(const PathMovesParams& p, Range seqs) {
  for (int seq = seqs.begin; seq < seqs.end; ++seq) {
    const int32_t* pages = p.page_table + int64_t{p.slot[seq]} * p.max_pages;
    const auto place = [&](int after_root) {
      const int token = p.position[seq] - 1 + after_root;
      return pages[token / kPageTokens] * kPageTokens + token % kPageTokens;
    };
    for (int step = 0; step < p.max_moves; ++step) {
      const bool on_path = step < p.n_accepted[seq];
      const int node = on_path ? p.path[int64_t{seq} * p.n_nodes + step] : 0;
      const bool moves = on_path && node < p.n_nodes_held && node != step + 1;
      const int64_t i = int64_t{seq} * p.max_moves + step;
      p.from_token[i] = moves ? place(node) : -1;
      p.to_token[i] = moves ? place(step + 1) : -1;
    }
  }
}

void set_pages_cpu(const SetPagesParams& p, Range changes) {
  for (int i = changes.begin; i < changes.end; ++i) p.table[p.changes[i].cell] = p.changes[i].page;
}

}  // namespace tandem
