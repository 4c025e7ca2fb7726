#include "ops/elementwise.h"

#include "base/check.h"
#include "ops/operation.h"

namespace tandem::ops {
namespace {

/// Runs an operation on the rows of its parameters, each of about as many numbers as one of `row`.
template <class Params>
void run_rows(const Operation<Params>& operation, const Params& params, const Tensor& row,
              Stream stream) {
  const bool on_gpu = row.device().kind == Device::Kind::cuda;
  TANDEM_CHECK(on_gpu == (stream.handle != nullptr), "{}: the tensor is on {}, the stream is not",
               operation.name, row.device().name());
  operation.run(params, params.n_rows, row.row_size() * int64_t{sizeof(float)}, stream);
}

RowNormsParams params_of(const Tensor& squares, const Tensor& qkv, const RowNorms& norms) {
  TANDEM_CHECK(qkv.row_size() == norms.q_dim + 2 * norms.kv_dim && squares.rows() == qkv.rows(),
               "row norms: {} rows of {} numbers do not fit {} + 2 x {}", qkv.rows(),
               qkv.row_size(), norms.q_dim, norms.kv_dim);
  return {.out = qkv.raw(),
          .in = qkv.raw(),
          .squares = squares.as<float>(),
          .q_norm = norms.q,
          .k_norm = norms.k,
          .n_rows = as_int(qkv.rows()),
          .q_dim = norms.q_dim,
          .kv_dim = norms.kv_dim,
          .first_k = norms.first_k,
          .q_all = norms.q_all,
          .k_all = norms.k_all,
          .eps = norms.eps,
          .act = qkv.dtype()};
}

}  // namespace

void rms_norm(const Tensor& out, const Tensor& x, const float* weight, float eps, Stream stream,
              NormOutput output) {
  TANDEM_CHECK(out.rows() == x.rows(), "rms_norm: input has {} rows, output {}", x.rows(),
               out.rows());
  rms_norm_of(out, x, nullptr, weight, eps, stream, output);
}

void rms_norm_of(const Tensor& out, const Tensor& x, const int32_t* rows, const float* weight,
                 float eps, Stream stream, NormOutput output) {
  TANDEM_CHECK(x.dtype() == DType::f32 && out.row_size() == x.row_size(),
               "rms_norm: input [{}, {}] is not f32 or does not fit the output", x.rows(),
               x.row_size());
  TANDEM_CHECK((!output.adds || out.dtype() == DType::f32) &&
                   (rows == nullptr || (weight != nullptr && !output.adds)),
               "rms_norm: listed rows and sums are not supported together");
  const RmsNormParams p{.out = out.raw(),
                        .x = x.as<float>(),
                        .weight = weight,
                        .n_rows = as_int(out.rows()),
                        .dim = as_int(x.row_size()),
                        .eps = eps,
                        .act = out.dtype(),
                        .rows = rows,
                        .n_x = as_int(x.rows()),
                        .scale = output.scale,
                        .adds = output.adds};
  run_rows(TANDEM_OPERATION(rms_norm), p, x, stream);
}

void gate_mul(const Tensor& out, const Tensor& gate_up, Gate gate, Stream stream) {
  TANDEM_CHECK(out.dtype() == gate_up.dtype() && out.rows() == gate_up.rows() &&
                   2 * out.row_size() == gate_up.row_size(),
               "gate_mul: output does not fit gate_up [{}, {}]", gate_up.rows(),
               gate_up.row_size());
  const GateMulParams p{.out = out.raw(),
                        .gate_up = gate_up.raw(),
                        .n_rows = as_int(out.rows()),
                        .ffn_dim = as_int(out.row_size()),
                        .act = out.dtype(),
                        .gate = gate};
  run_rows(TANDEM_OPERATION(gate_mul), p, gate_up, stream);
}

void qk_squares(const Tensor& squares, const Tensor& qkv, const RowNorms& norms, Stream stream) {
  run_rows(TANDEM_OPERATION(qk_squares), params_of(squares, qkv, norms), qkv, stream);
}

void row_norms(const Tensor& out, const Tensor& qkv, const Tensor& squares, const RowNorms& norms,
               Stream stream) {
  RowNormsParams p = params_of(squares, qkv, norms);
  p.out = out.raw();
  run_rows(TANDEM_OPERATION(row_norms), p, qkv, stream);
}

void rope_kv(const RopeKvArgs& a, Stream stream) {
  const Tensor &q = a.q, &qkv = a.qkv;
  const int64_t d = q.size(2), n_kv = a.k_pool.size(1);
  TANDEM_CHECK(qkv.row_size() == (q.size(1) + 2 * n_kv) * d && a.k_pool.size(3) == d &&
                   a.k_pool.size(2) == kPageTokens,
               "rope_kv: qkv [{}, {}] does not fit the queries or KV pages", qkv.rows(),
               qkv.row_size());
  TANDEM_CHECK(q.dtype() == qkv.dtype() && a.k_pool.dtype() == qkv.dtype() &&
                   a.v_pool.dtype() == qkv.dtype(),
               "rope_kv: dtypes of queries, keys and values differ");
  TANDEM_CHECK((a.norms.q == nullptr) == (a.norms.k == nullptr),
               "rope_kv needs both norms or none");
  const RopeKvParams p{.q = q.raw(),
                       .k_pool = a.k_pool.raw(),
                       .v_pool = a.v_pool.raw(),
                       .qkv = qkv.raw(),
                       .cos_table = a.rope.cos(),
                       .sin_table = a.rope.sin(),
                       .pos = a.step.pos,
                       .slot_page = a.step.row_page,
                       .slot_in_page = a.step.row_in_page,
                       .n_rows = as_int(qkv.rows()),
                       .n_heads = as_int(q.size(1)),
                       .n_kv_heads = as_int(n_kv),
                       .head_dim = as_int(d),
                       .act = qkv.dtype(),
                       .q_norm = a.norms.q,
                       .k_norm = a.norms.k,
                       .norm_eps = a.norms.eps,
                       .rotated = a.rope.dims()};
  run_rows(TANDEM_OPERATION(rope_kv), p, qkv, stream);
}

void embed_ids(const Tensor& out, const Tensor& table, const int32_t* ids, Stream stream,
               const VocabularyPart& part) {
  TANDEM_CHECK(out.row_size() == table.row_size(),
               "embedding: output width differs from the table's {}", table.row_size());
  launch(TANDEM_KERNEL(embed),
         {.out = out.as<float>(),
          .table = table.raw(),
          .ids = ids,
          .n_rows = as_int(out.rows()),
          .dim = as_int(out.row_size()),
          .from = table.dtype(),
          .vocab = as_int(table.rows()),
          .first = part.first,
          .whole = part.whole},
         stream);
}

void embed_ids(const Tensor& out, const CodeTiles& table, const int32_t* ids, Stream stream,
               const VocabularyPart& part) {
  TANDEM_CHECK(out.row_size() == table.in, "embedding: output width differs from the table's {}",
               table.in);
  launch(TANDEM_KERNEL(embed_tiles),
         {.out = out.as<float>(),
          .table = table,
          .ids = ids,
          .n_rows = as_int(out.rows()),
          .first = part.first,
          .whole = part.whole},
         stream);
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
                        .act = q.dtype(),
                        .scale = 1 / rope.scale(),
                        .rotated = rope.dims()};
  run_rows(TANDEM_OPERATION(rotate_q), p, q, stream);
}

}  // namespace tandem::ops
