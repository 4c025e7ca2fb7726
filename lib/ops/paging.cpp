#include "ops/paging.h"

#include "ops/operation.h"

namespace tandem::ops {
namespace {

constexpr Operation kNarrowRows = TANDEM_OPERATION(narrow_rows);
constexpr Operation kWidenEightBitRows = TANDEM_OPERATION(widen_eight_bit_rows);
constexpr Operation kCopyPage = TANDEM_OPERATION(copy_page);
constexpr Operation kMoveTokens = TANDEM_OPERATION(move_tokens);
constexpr Operation kPathMoves = TANDEM_OPERATION(path_moves);
constexpr Operation kSetPages = TANDEM_OPERATION(set_pages);
constexpr Operation kLeaveEnds = TANDEM_OPERATION(leave_ends);
constexpr Operation kCatchUp = TANDEM_OPERATION(catch_up);
constexpr Operation kWriteQueries = TANDEM_OPERATION(write_queries);
constexpr Operation kMoveQueries = TANDEM_OPERATION(move_queries);

/// Bytes of a token in one layer's pool of K or V.
int64_t token_bytes(const PagePools& pools) { return int64_t{pools.n_kv_heads} * pools.row_bytes; }

}  // namespace

void narrow_rows(const EightBitRowsParams& p, Stream stream) {
  kNarrowRows.run(p, p.n_rows, 4 * int64_t{p.d}, stream);
}

void widen_eight_bit_rows(const EightBitRowsParams& p, Stream stream) {
  kWidenEightBitRows.run(p, p.n_rows, 4 * int64_t{p.d}, stream);
}

void copy_page(const CopyPageParams& p, Stream stream) {
  if (p.pools.n_layers == 0) return;
  kCopyPage.run(p, 2 * p.pools.n_layers, kPageTokens * token_bytes(p.pools), stream);
}

void move_tokens(const MoveTokensParams& p, Stream stream) {
  if (p.pools.n_layers == 0) return;
  kMoveTokens.run(p, 2 * p.pools.n_layers, p.n_moves * token_bytes(p.pools), stream);
}

void path_moves(const PathMovesParams& p, Stream stream) {
  kPathMoves.run(p, p.n_seqs, p.max_moves * int64_t{2 * sizeof(int32_t)}, stream);
}

void set_pages(const SetPagesParams& p, Stream stream) {
  kSetPages.run(p, p.n_changes, sizeof(PageChange), stream);
}

void leave_ends(const LeaveEndsParams& p, Stream stream) {
  kLeaveEnds.run(p, p.n_seqs, 3 * sizeof(int32_t), stream);
}

void catch_up(const CatchUpParams& p, Stream stream) {
  kCatchUp.run(p, p.n_seqs, p.n_steps * int64_t{sizeof(StepRows)}, stream);
}

void write_queries(const WriteQueriesParams& p, Stream stream) {
  const int64_t rows_a_seq = p.n_seqs == 0 ? 0 : p.n_rows / p.n_seqs;
  kWriteQueries.run(p, p.n_seqs, rows_a_seq * p.rings.row_bytes, stream);
}

void move_queries(const MoveQueriesParams& p, Stream stream) {
  kMoveQueries.run(p, p.n_seqs, int64_t{p.max_moves} * p.rings.n_layers * p.rings.row_bytes,
                   stream);
}

}  // namespace tandem::ops
