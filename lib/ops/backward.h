#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/elementwise.h"
#include "tensor/cuda.h"

/// The backward passes of a layer's operations and what training adds to them. Tensors of one call
/// are on one device; on a GPU the work goes to the stream, and other pointers are into that GPU's
/// memory too.
namespace tandem::ops {

struct RmsNormBackwardArgs {
  Tensor dx;                      // [rows, dim] f32, with `rows` [n, dim]: added to
  Tensor dy;                      // [rows, dim] act or f32
  Tensor x;                       // as dx, f32 or act
  const float* weight = nullptr;  // [dim]; null: x was not normalised
  float eps = 0;
  const int32_t* rows = nullptr;  // [rows of dy] distinct rows of x; null: all in order
  float* inverse = nullptr;       // [rows of dy] for norm_weight_gradient; or null
  float scale = 1;                // the norm's NormOutput had it
};
void rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream = {});

/// dweight += sum_r dy[r] x[r] inverse[r], of the same arguments, after rms_norm_backward.
void norm_weight_gradient(float* dweight, const RmsNormBackwardArgs& args, Stream stream = {});

/// dbias [n] += sum of the rows of dy [rows, n].
void bias_gradient(float* dbias, const Tensor& dy, Stream stream = {});

/// Overwrites gate_up with its gradient, after copying listed columns of a to a_columns.
/// shapes   gate_up [rows, 2 F]; da [rows, F], or empty: gate_up stays; a_columns [rows, n], or
///          empty; columns [n], null: the first n
void gate_mul_backward(const Tensor& gate_up, const Tensor& da, const Tensor& a_columns,
                       const int32_t* columns, Gate gate, Stream stream = {});

/// Takes the gradient of what row_norms writes to that of the projection, in place.
/// shapes   dqkv, qkv [rows, (Hq + 2 Hkv) d] act; dnorms [rows, (Hq + Hkv) d], each row's part of
///          the gradients of the norms, or null
void row_norms_backward(const Tensor& dqkv, const Tensor& qkv, const RowNorms& norms, float* dnorms,
                        Stream stream = {});

struct RopeBackwardArgs {
  Tensor dqkv;  // [rows, (Hq + 2 Hkv) d] gradients of the turned heads; gets the projection's
  const RopeTable& rope;
  const int32_t* pos;  // [rows]
  int n_heads, n_kv_heads;
  Tensor qkv = {};  // the projection, where there are norms
  HeadNorms norms = {};
  float* dnorms = nullptr;  // [rows, 2 d] each row's part of the gradients of the norms; or null
};
void rope_backward(const RopeBackwardArgs& args, Stream stream = {});

/// The backward pass of a prefill of whole documents: a step of chains without committed tokens.
struct AttentionBackwardArgs {
  Tensor dqkv;             // [rows, (Hq + 2 Hkv) d] gets gradients of turned q and k, and of v
  Tensor dout, out;        // [rows, Hq, d]
  const float* lse;        // [rows, Hq]
  Tensor q;                // [rows, Hq, d]
  Tensor k, v;             // pools of one layer
  const StepArrays& step;  // of it slot, row_begin, page_table
  int window = 0;
  float scale = 1.0f;
};
size_t attention_backward_workspace_bytes(int max_rows, int n_heads, int n_kv_heads, int head_dim,
                                          DType act, Device device = {});
void attention_backward(const AttentionBackwardArgs& args, std::span<std::byte> workspace,
                        Stream stream = {});

struct CrossEntropyArgs {
  Tensor logits;           // [rows, V] f32
  Tensor dlogits;          // [rows, V] act, may be the logits if f32; empty: not wanted
  float* loss;             // [rows]
  const int32_t* targets;  // [rows]; -1: the row is ignored
  float scale = 1.0f;      // of dlogits
};
void cross_entropy(const CrossEntropyArgs& args, Stream stream = {});

/// Rows by the token that each is of.
struct TokenRows {
  explicit TokenRows(std::span<const int32_t> tokens);
  /// The largest number of tokens in `lists`.
  static size_t most_numbers(size_t n_rows) { return 3 * n_rows + 1; }

  int n_tokens = 0;  // that differ
  /// [n_tokens] tokens, ascending; [n_tokens + 1] where each one's rows begin; [rows] these,
  /// ascending.
  std::vector<int32_t> lists;
};

/// dtable[tokens[r]] += dx[r], rows in order.
/// shapes   dtable [V, dim] f32; dx [rows, dim] f32
/// lists    those of `by_token` where the stream computes
void embedding_gradient(const Tensor& dtable, const Tensor& dx, const TokenRows& by_token,
                        const int32_t* lists, Stream stream = {});

/// out[r, c] = in[r, columns[c]].
/// shapes   out [rows, n], in [rows, width] of one dtype; columns [n]
void gather_columns(const Tensor& out, const Tensor& in, const int32_t* columns,
                    Stream stream = {});

/// sums[i] += matrix[index[i]].
/// shapes   sums, index [n]; matrix any
void add_elements(std::span<float> sums, const Tensor& matrix, const int32_t* index,
                  Stream stream = {});

/// Sum of squares in f64, in a fixed order.
/// queue    of the GPU that x is on; waited for
/// cost     on a GPU `sums`, square_sum_parts(x.size()) of them on it
int64_t square_sum_parts(size_t n);
double square_sum(std::span<const float> x, double* sums = nullptr, cuda::Queue* queue = nullptr);

struct AdamW {
  float learning_rate = 0, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, weight_decay = 0;
};
/// All [n], but that base may be empty: weights decay to 0 then.
struct AdamWArgs {
  std::span<float> weights, first, second;  // and their moments
  std::span<const float> gradient, base = {};
};
/// One step, the t-th from 1 (kernels/optim/optim.h).
void adamw(const AdamWArgs& args, const AdamW& by, int64_t t, float gradient_scale,
           Stream stream = {});

/// Weights that are trained where they lie, with moments in bf16; all [n].
struct AdamWNarrowArgs {
  void* weights;
  DType weight_type;  // bf16 or f32
  std::span<bf16> first, second;
  std::span<const float> gradient, base = {};
  int64_t first_element = 0;  // number of the first among all trained values
  /// Weights in bf16 are rounded stochastically by this seed, or to nearest.
  std::optional<uint64_t> seed = {};
};
/// One step, the t-th from 1 (kernels/optim/adamw_narrow.h).
void adamw_narrow(const AdamWNarrowArgs& args, const AdamW& by, int64_t t, float gradient_scale,
                  Stream stream = {});

}  // namespace tandem::ops
