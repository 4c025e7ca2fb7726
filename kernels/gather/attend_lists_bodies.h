#pragma once
// The bodies of attend_lists_cuda.
#include "kernels/gather/attend_lists.h"

namespace tandem {

/// The lists of a call.
inline unsigned lists_of(const AttendListsParams& p) {
  return static_cast<unsigned>((p.rows.end - p.rows.begin) * (p.n_heads / p.lists.heads));
}

/// By tensor cores: bf16, rows of at most 128 elements, a multiple of eight.
bool attend_lists_mma_takes(const AttendListsParams&);
/// split    most keys of a part
void attend_lists_mma(const AttendListsParams&, int parts, int split, Stream);

}  // namespace tandem
