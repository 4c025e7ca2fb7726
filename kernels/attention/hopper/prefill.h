#pragma once
#include "kernels/attention/attention_prefill_cuda.h"

namespace tandem::hopper {

/// Whether the Hopper body takes this call on this GPU: bf16, d 64 or 128, no tree, rows that the
/// copy engine can read.
bool prefill_supported(const AttentionParams&);
/// The launch, for calls that prefill_supported accepts.
/// errors   kind device as tensor_map_bf16
void prefill(const AttentionParams&, const AttentionRows&, Stream);

}  // namespace tandem::hopper
