#pragma once
#include <functional>

#include "kernels/linear/packed_linear.h"

namespace tandem {

/// Multiply-adds below which waking the other threads costs more than they save.
inline constexpr int64_t kAloneWork = 1 << 16;
/// Rows that are packed together, at least: the weights come from memory once for them.
inline constexpr int64_t kLeastRows = 96;
/// Tasks a thread, at least, where work can be divided: dynamic scheduling then evens out.
inline constexpr int kTasksPerThread = 4;

/// Bytes of a matrix [out, in] in panels.
size_t packed_weights_bytes(const PackedLinearKernel&, int64_t out, int64_t in, DType type);

/// Bytes of workspace for products of up to `rows` rows on up to `threads` threads. It does not
/// shrink when either grows.
size_t packed_linear_workspace_bytes(const PackedLinearKernel&, int64_t rows, int64_t in,
                                     DType type, int threads);

/// A whole product on the thread pool.
/// units    `workspace` as packed_linear_workspace_bytes has it, aligned to 64 bytes to be fast
void packed_linear_with(const PackedLinearKernel&, const PackedLinearParams&, void* workspace,
                        int threads);

/// Writes a panel of weights in f32, [in][panel_outputs].
using WidenPanel = std::function<void(int panel, float* to)>;
size_t widened_linear_workspace_bytes(const PackedLinearKernel&, int64_t rows, int64_t in,
                                      int threads);
/// The same product with panels that are written when they are multiplied.
/// units    `workspace` as widened_linear_workspace_bytes has it; params.w is not read, params.type
///          is that of x
void widened_linear_with(const PackedLinearKernel&, const PackedLinearParams&, const WidenPanel&,
                         void* workspace, int threads);

}  // namespace tandem
