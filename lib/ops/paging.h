#pragma once
#include "kernels/page/catch_up.h"
#include "kernels/page/eight_bit_rows.h"
#include "kernels/page/page.h"
#include "kernels/page/query_ring.h"

/// Operations on paged pools of keys and values, on page tables, on the places of a step's rows and
/// on rings of queries; the headers above define them. They run on the GPU whose stream is given
/// and may be recorded in a graph there, or at once on the CPU where the stream is null.
/// errors   kind device in a build without CUDA
namespace tandem::ops {

void narrow_rows(const EightBitRowsParams& params, Stream stream);
void widen_eight_bit_rows(const EightBitRowsParams& params, Stream stream);
void copy_page(const CopyPageParams& params, Stream stream);
void move_tokens(const MoveTokensParams& params, Stream stream);
void path_moves(const PathMovesParams& params, Stream stream);
void set_pages(const SetPagesParams& params, Stream stream);
void leave_ends(const LeaveEndsParams& params, Stream stream);
void catch_up(const CatchUpParams& params, Stream stream);
void write_queries(const WriteQueriesParams& params, Stream stream);
void move_queries(const MoveQueriesParams& params, Stream stream);

}  // namespace tandem::ops
