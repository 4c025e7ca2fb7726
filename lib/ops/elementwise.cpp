#include "ops/elementwise.h"

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"
#include "kernels/cuda_table.h"
#include "kernels/ffn/silu_mul.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "tensor/cuda.h"

namespace tandem::ops {
namespace {

// A thread's share of an elementwise operation should outweigh waking it (a few microseconds).
constexpr int64_t kGrainElements = 16384;

template <class Params>
void run_rows(void (*kernel)(const Params&, Range), const Params& params, int64_t row_elements) {
  const int grain = static_cast<int>(1 + kGrainElements / std::max<int64_t>(1, row_elements));
  parallel_ranges(params.n_rows, grain, [&](int begin, int end) {
    kernel(params, Range{begin, end});
  });
}

bool on_gpu(const Tensor& t) { return t.device().kind == Device::Kind::cuda; }

int as_int(int64_t n) { return static_cast<int>(n); }

}  // namespace

void rms_norm(const Tensor& out, const Tensor& x, const float* weight, float eps, Stream stream) {
  TANDEM_CHECK(out.rows() == x.rows(), "rms_norm of {} rows, to {}", x.rows(), out.rows());
  rms_norm_of(out, x, nullptr, weight, eps, stream);
}

void rms_norm_of(const Tensor& out, const Tensor& x, const int32_t* rows, const float* weight,
                 float eps, Stream stream) {
  TANDEM_CHECK(x.dtype() == DType::f32 && out.row_size() == x.row_size(), "rms_norm of [{}, {}]",
               x.rows(), x.row_size());
  const RmsNormParams p{.out = out.raw(),
                        .x = x.as<float>(),
                        .weight = weight,
                        .n_rows = as_int(out.rows()),
                        .dim = as_int(x.row_size()),
                        .eps = eps,
                        .act = out.dtype(),
                        .rows = rows,
                        .n_x = as_int(x.rows())};
  if (!on_gpu(x)) return run_rows(cpu_table().rms_norm, p, x.row_size());
  cuda_table().rms_norm(p, stream);
  cuda::launched("rms_norm", stream);
}

void silu_mul(const Tensor& out, const Tensor& gate_up, Stream stream) {
  TANDEM_CHECK(out.dtype() == gate_up.dtype() && out.rows() == gate_up.rows() &&
                   2 * out.row_size() == gate_up.row_size(),
               "silu_mul of [{}, {}]", gate_up.rows(), gate_up.row_size());
  const SiluMulParams p{.out = out.raw(),
                        .gate_up = gate_up.raw(),
                        .n_rows = as_int(out.rows()),
                        .ffn_dim = as_int(out.row_size()),
                        .act = out.dtype()};
  if (!on_gpu(out)) return run_rows(cpu_table().silu_mul, p, gate_up.row_size());
  cuda_table().silu_mul(p, stream);
  cuda::launched("silu_mul", stream);
}

void rope_kv(const Tensor& q, const Tensor& k_pool, const Tensor& v_pool, const Tensor& qkv,
             const RopeTable& rope, const StepArrays& step, const HeadNorms& norms, Stream stream) {
  const int64_t d = q.size(2), n_kv = k_pool.size(1);
  TANDEM_CHECK(qkv.row_size() == (q.size(1) + 2 * n_kv) * d && k_pool.size(3) == d &&
                   k_pool.size(2) == kPageTokens,
               "rope_kv of [{}, {}]", qkv.rows(), qkv.row_size());
  TANDEM_CHECK(
      q.dtype() == qkv.dtype() && k_pool.dtype() == qkv.dtype() && v_pool.dtype() == qkv.dtype(),
      "rope_kv mixes dtypes");
  TANDEM_CHECK((norms.q == nullptr) == (norms.k == nullptr), "rope_kv with one norm of two");
  const RopeKvParams p{.q = q.raw(),
                       .k_pool = k_pool.raw(),
                       .v_pool = v_pool.raw(),
                       .qkv = qkv.raw(),
                       .cos_table = rope.cos(),
                       .sin_table = rope.sin(),
                       .pos = step.pos,
                       .slot_page = step.row_page,
                       .slot_in_page = step.row_in_page,
                       .n_rows = as_int(qkv.rows()),
                       .n_heads = as_int(q.size(1)),
                       .n_kv_heads = as_int(n_kv),
                       .head_dim = as_int(d),
                       .act = qkv.dtype(),
                       .q_norm = norms.q,
                       .k_norm = norms.k,
                       .norm_eps = norms.eps};
  if (!on_gpu(q)) return run_rows(cpu_table().rope_kv, p, qkv.row_size());
  cuda_table().rope_kv(p, stream);
  cuda::launched("rope_kv", stream);
}

void embed_ids(const Tensor& out, const Tensor& table, const int32_t* ids, Stream stream) {
  TANDEM_CHECK(on_gpu(out) && out.row_size() == table.row_size(), "embedding of width {}",
               table.row_size());
  cuda_table().embed({.out = out.as<float>(),
                      .table = table.raw(),
                      .ids = ids,
                      .n_rows = as_int(out.rows()),
                      .dim = as_int(out.row_size()),
                      .from = table.dtype(),
                      .vocab = as_int(table.rows())},
                     stream);
  cuda::launched("embed", stream);
}

void rotate_q(const Tensor& out, const Tensor& q, const RopeTable& rope, const int32_t* pos,
              int32_t max_pos, Stream stream) {
  const RotateQParams p{.out = out.raw(),
                        .q = q.raw(),
                        .cos_table = rope.cos(),
                        .sin_table = rope.sin(),
                        .pos = pos,
                        .max_pos = max_pos,
                        .n_rows = as_int(q.rows()),
                        .n_heads = as_int(q.size(1)),
                        .head_dim = as_int(q.size(2)),
                        .act = q.dtype()};
  if (!on_gpu(q)) return run_rows(cpu_table().rotate_q, p, q.row_size());
  cuda_table().rotate_q(p, stream);
  cuda::launched("rotate_q", stream);
}

}  // namespace tandem::ops
