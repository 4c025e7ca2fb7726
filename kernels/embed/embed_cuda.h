#pragma once
#include "kernels/embed/embed.h"
#include "kernels/embed/gather_rows.h"

namespace tandem {

/// embed on a GPU: the contract of embed.h with pointers into device memory, the table aligned to
/// its element. Ids outside [0, vocab), which the host cannot have checked, give a row of NaN.
void embed_cuda(const EmbedParams&, Stream);

/// gather_rows on a GPU: the contract of gather_rows.h with pointers into device memory. Indices
/// outside [0, n_in) give a row of NaN.
void gather_rows_cuda(const GatherRowsParams&, Stream);

}  // namespace tandem
