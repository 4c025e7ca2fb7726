#pragma once
#include "kernels/rope/rope.h"

namespace tandem {

/// rope_kv on a GPU: the contract of rope.h with pointers into device memory. Rows of a negative
/// slot_page, which pad a captured batch, get their q and leave the pools alone. With norms for
/// d <= 256, as attention on a GPU has it.
void rope_kv_cuda(const RopeKvParams&, Stream);

/// rotate_q on a GPU: the contract of rope.h with pointers into device memory.
void rotate_q_cuda(const RotateQParams&, Stream);

}  // namespace tandem
