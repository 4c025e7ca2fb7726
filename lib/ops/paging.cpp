#include "ops/paging.h"

#include "ops/operation.h"

namespace tandem::ops {
namespace {

constexpr Operation kCopyPage{"copy_page", &CpuTable::copy_page, &CudaTable::copy_page};
constexpr Operation kMoveTokens{"move_tokens", &CpuTable::move_tokens, &CudaTable::move_tokens};
constexpr Operation kPathMoves{"path_moves", &CpuTable::path_moves, &CudaTable::path_moves};
constexpr Operation kSetPages{"set_pages", &CpuTable::set_pages, &CudaTable::set_pages};

/// Bytes of a token in one layer's pool of K or V.
int64_t token_bytes(const PagePools& pools) { return int64_t{pools.n_kv_heads} * pools.row_bytes; }

}  // namespace

void copy_page(const CopyPageParams& p, Stream stream) {
  kCopyPage.run(p, 2 * p.pools.n_layers, kPageTokens * token_bytes(p.pools), stream);
}

void move_tokens(const MoveTokensParams& p, Stream stream) {
  kMoveTokens.run(p, 2 * p.pools.n_layers, p.n_moves * token_bytes(p.pools), stream);
}

void path_moves(const PathMovesParams& p, Stream stream) {
  kPathMoves.run(p, p.n_seqs, p.max_moves * int64_t{2 * sizeof(int32_t)}, stream);
}

void set_pages(const SetPagesParams& p, Stream stream) {
  kSetPages.run(p, p.n_changes, sizeof(PageChange), stream);
}

}  // namespace tandem::ops
