#pragma once
#include "kernels/attention/attention.h"

namespace tandem {

/// Workspace for attention_cpu on the thread pool as it is now.
size_t attention_cpu_workspace_bytes(AttentionBounds bounds);

/// The whole call on the thread pool with the variant of the ISA in use.
/// units    `workspace` 64-byte aligned, of attention_cpu_workspace_bytes for bounds that the call
///          respects; the pool must not have grown since
void attention_cpu(const AttentionParams&, void* workspace);

/// The same with a given kernel and number of threads, for tests and benchmarks.
void attention_with(const AttentionKernel&, const AttentionParams&, void* workspace, int threads);

}  // namespace tandem
