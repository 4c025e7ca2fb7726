#pragma once
#include "kernels/embed/embed.h"

namespace tandem {

/// embed on a GPU: the contract of embed.h with pointers into device memory, the table aligned to
/// its element. Ids outside [0, vocab), which the host cannot have checked, give a row of NaN.
void embed_cuda(const EmbedParams&, Stream);

}  // namespace tandem
