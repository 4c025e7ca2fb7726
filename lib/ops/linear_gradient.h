#pragma once
#include <cstdint>
#include <span>

#include "kernels/channels/weight_part.h"
#include "ops/linear.h"

/// Gradients of dense layers, and changes of their weights, for training. Tensors and indices of a
/// call are where the weights are; on a GPU the work goes to the stream.
namespace tandem::ops {

/// Input gradient of y = x W^T + b: dx = dy W, or dx += dy W.
/// shapes   dy [rows, out] of the weights' input type; dx [rows, in] of that type or f32, f32 if
///          accumulating; the weights are trainable
/// numerics f32 accumulation, one rounding to dx
/// cost     reads the rows of the weights once, and decodes codes; where the CPU does not multiply
///          bf16, widens them. A GPU widens codes to bf16 in `workspace`, all outputs of some
///          inputs at a time, and a column of dx is one product
/// errors   none (shapes are checked by TANDEM_CHECK); `workspace` per the functions below
void linear_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                           Accumulate accumulate, std::span<std::byte> workspace,
                           Stream stream = {});

/// Weight gradient of y = x W^T: dw = dy^T x, or dw += dy^T x. Of listed rows or columns of W, dy
/// or x are those columns (gather_columns).
/// shapes   dw [n, m] f32; dy [rows, n] and x [rows, m] of one dtype, f32 or bf16
/// numerics f32 accumulation
/// errors   as above
void linear_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x,
                            Accumulate accumulate, std::span<std::byte> workspace,
                            Stream stream = {});

/// True for codes of trainable weights.
bool is_frozen(const PackedWeights& w);
/// Takes rows or columns of them out of the codes. They become numbers of the inputs' type, with
/// the values of the codes. Reading and writing of that part mean these from now on.
/// shapes   values as write_part's, in the inputs' type; index ascending; both where the weights
///          are, which they outlive
void hold_part(PackedWeights& w, WeightPart part, std::span<const int32_t> index, void* values,
               Stream stream = {});

/// Workspace of either on at most `rows` rows. Codes need PackedWeights::workspace_bytes.
size_t input_gradient_workspace_bytes(const PackedWeights::Spec& spec, int64_t rows);
size_t weight_gradient_workspace_bytes(int64_t n, int64_t m, DType dtype, int64_t rows,
                                       Device device = {});

/// Chooses on a GPU how such products of as many rows run, as tune_linear does. dx and dw are
/// overwritten. Does nothing on the CPU.
void tune_input_gradient(const Tensor& dx, const Tensor& dy, const PackedWeights& w,
                         std::span<std::byte> workspace, Stream stream);
void tune_weight_gradient(const Tensor& dw, const Tensor& dy, const Tensor& x,
                          Accumulate accumulate, std::span<std::byte> workspace, Stream stream);

/// [out, in] of trainable weights that are numbers, in their dtype.
const void* trainable_rows(const PackedWeights& w);

/// Calls visit for rows [first, first + n) of trainable weights, in order. Codes are decoded, some
/// rows at a time, to the inputs' type in `workspace` (PackedWeights::workspace_bytes).
/// visit    (first of the rows, rows [.., in], the workspace that is left for a product with them)
using VisitRows = std::function<void(int64_t first, const Tensor& rows, std::span<std::byte> rest)>;
void each_rows(const PackedWeights& w, int64_t first, int64_t n, std::span<std::byte> workspace,
               Stream stream, const VisitRows& visit);

/// Numbers of trainable weights in f32, as they are. A GPU reads of codes only the part that
/// hold_part took.
/// shapes   out [out, in] of all; [n, in] of rows, [out, n] of columns, [n] of elements
///          (row * in + column); index [n] distinct and in range, not read of all
void read_part(std::span<float> out, const PackedWeights& w, WeightPart part,
               std::span<const int32_t> index, Stream stream = {});

/// Replaces numbers of trainable weights, rounded to nearest even to their dtype, in every packing
/// that is held. The others keep their bits. Codes allow it for the part that hold_part took.
/// shapes   as those of reading
void write_part(PackedWeights& w, WeightPart part, std::span<const int32_t> index,
                std::span<const float> values, Stream stream = {});

/// The same of the bias, whole.
/// shapes   out, values [out]
void read_bias(std::span<float> out, const PackedWeights& w, Stream stream = {});
void write_bias(PackedWeights& w, std::span<const float> values, Stream stream = {});

/// Trainable weights to be changed where they lie, and what must follow on that: packing them
/// again, and rounding the bias again, where such copies are held.
void* rows_in_place(PackedWeights& w);
void changed_in_place(PackedWeights& w, Stream stream = {});

}  // namespace tandem::ops
