#pragma once
#include "kernels/attention/attention.h"

namespace tandem {

/// The whole call on the thread pool with the variant of the ISA in use.
/// units    `workspace` 64-byte aligned, of attention_cpu_workspace_bytes for bounds that the call
///          respects, with the pool's threads; it must not have grown since
void attention_cpu(const AttentionParams&, void* workspace);

/// The same with a given kernel and number of threads, for tests and benchmarks.
void attention_with(const AttentionKernel&, const AttentionParams&, void* workspace, int threads);

}  // namespace tandem
