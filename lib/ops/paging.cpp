#include "ops/paging.h"

#include "ops/operation.h"

namespace tandem::ops {
namespace {

/// Bytes of a token in one layer's pool of K or V.
int64_t token_bytes(const PagePools& pools) { return int64_t{pools.n_kv_heads} * pools.row_bytes; }

}  // namespace

void narrow_rows(const EightBitRowsParams& p, Stream stream) {
  TANDEM_OPERATION(narrow_rows).run(p, p.n_rows, 4 * int64_t{p.d}, stream);
}

void widen_eight_bit_rows(const EightBitRowsParams& p, Stream stream) {
  TANDEM_OPERATION(widen_eight_bit_rows).run(p, p.n_rows, 4 * int64_t{p.d}, stream);
}

void copy_page(const CopyPageParams& p, Stream stream) {
  if (p.pools.n_layers == 0) return;
  TANDEM_OPERATION(copy_page).run(p, 2 * p.pools.n_layers, kPageTokens * token_bytes(p.pools),
                                  stream);
}

void move_tokens(const MoveTokensParams& p, Stream stream) {
  if (p.pools.n_layers == 0) return;
  TANDEM_OPERATION(move_tokens)
      .run(p, 2 * p.pools.n_layers, p.n_moves * token_bytes(p.pools), stream);
}

void path_moves(const PathMovesParams& p, Stream stream) {
  TANDEM_OPERATION(path_moves).run(p, p.n_seqs, p.max_moves * int64_t{2 * sizeof(int32_t)}, stream);
}

void set_pages(const SetPagesParams& p, Stream stream) {
  TANDEM_OPERATION(set_pages).run(p, p.n_changes, sizeof(PageChange), stream);
}

void leave_ends(const LeaveEndsParams& p, Stream stream) {
  TANDEM_OPERATION(leave_ends).run(p, p.n_seqs, 3 * sizeof(int32_t), stream);
}

void catch_up(const CatchUpParams& p, Stream stream) {
  TANDEM_OPERATION(catch_up).run(p, p.n_seqs, p.n_steps * int64_t{sizeof(StepRows)}, stream);
}

void write_queries(const WriteQueriesParams& p, Stream stream) {
  const int64_t rows_a_seq = p.n_seqs == 0 ? 0 : p.n_rows / p.n_seqs;
  TANDEM_OPERATION(write_queries).run(p, p.n_seqs, rows_a_seq * p.rings.row_bytes, stream);
}

void move_queries(const MoveQueriesParams& p, Stream stream) {
  TANDEM_OPERATION(move_queries)
      .run(p, p.n_seqs, int64_t{p.max_moves} * p.rings.n_layers * p.rings.row_bytes, stream);
}

}  // namespace tandem::ops
