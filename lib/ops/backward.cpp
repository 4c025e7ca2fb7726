#include "ops/backward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/operation.h"

namespace tandem::ops {
namespace {

/// 1 / (1 - beta^t).
float unbias(float beta, int64_t t) {
  return 1 / static_cast<float>(1 - std::pow(double{beta}, static_cast<double>(t)));
}

AdamWStep step_of(const AdamW& by, int64_t t, float gradient_scale) {
  return {.gradient_scale = gradient_scale,
          .learning_rate = by.learning_rate,
          .beta1 = by.beta1,
          .beta2 = by.beta2,
          .epsilon = by.epsilon,
          .weight_decay = by.weight_decay,
          .unbias1 = unbias(by.beta1, t),
          .unbias2 = unbias(by.beta2, t)};
}

int64_t row_bytes(const Tensor& t) { return t.row_size() * int64_t{sizeof(float)}; }

int blocks_of(size_t n) {
  return as_int((static_cast<int64_t>(n) + kOptimBlock - 1) / kOptimBlock);
}

void add_columns(const ColumnSumsParams& p, Stream stream) {
  TANDEM_OPERATION(column_sums).run(p, p.dim, p.n_rows * int64_t{sizeof(float)}, stream);
}

}  // namespace

TokenRows::TokenRows(std::span<const int32_t> tokens) {
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto token_of = [&](int32_t row) { return tokens[static_cast<size_t>(row)]; };
  std::ranges::stable_sort(rows, {}, token_of);
  std::vector<int32_t> begin;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && token_of(rows[i]) == token_of(rows[i - 1])) continue;
    lists.push_back(token_of(rows[i]));
    begin.push_back(static_cast<int32_t>(i));
  }
  n_tokens = static_cast<int>(lists.size());
  begin.push_back(static_cast<int32_t>(rows.size()));
  lists.insert(lists.end(), begin.begin(), begin.end());
  lists.insert(lists.end(), rows.begin(), rows.end());
}

void rms_norm_backward(const RmsNormBackwardArgs& a, Stream stream) {
  check_stream("rms_norm_backward", a.dx, stream);
  TANDEM_CHECK(a.dx.dtype() == DType::f32 && a.dx.row_size() == a.dy.row_size() &&
                   a.x.row_size() == a.dy.row_size() && a.x.rows() == a.dx.rows() &&
                   (a.rows != nullptr || a.dy.rows() == a.x.rows()),
               "rms_norm_backward: dy [{}, {}] does not fit dx [{}, {}]", a.dy.rows(),
               a.dy.row_size(), a.dx.rows(), a.dx.row_size());
  const RmsNormBackwardParams p{.dx = a.dx.as<float>(),
                                .dy = a.dy.raw(),
                                .x = a.x.raw(),
                                .weight = a.weight,
                                .n_rows = as_int(a.dy.rows()),
                                .dim = as_int(a.dy.row_size()),
                                .eps = a.eps,
                                .dy_type = a.dy.dtype(),
                                .x_type = a.x.dtype(),
                                .rows = a.rows,
                                .inverse = a.inverse,
                                .scale = a.scale};
  TANDEM_OPERATION(rms_norm_backward).run(p, p.n_rows, row_bytes(a.dy), stream);
}

void norm_weight_gradient(float* dweight, const RmsNormBackwardArgs& a, Stream stream) {
  TANDEM_CHECK(a.inverse != nullptr,
               "norm_weight_gradient needs the inverse norms of the forward pass");
  add_columns({.sums = dweight,
               .dy = a.dy.raw(),
               .n_rows = as_int(a.dy.rows()),
               .dim = as_int(a.dy.row_size()),
               .dy_type = a.dy.dtype(),
               .x = a.x.raw(),
               .scale = a.inverse,
               .x_type = a.x.dtype(),
               .rows = a.rows},
              stream);
}

void bias_gradient(float* dbias, const Tensor& dy, Stream stream) {
  check_stream("bias_gradient", dy, stream);
  add_columns({.sums = dbias,
               .dy = dy.raw(),
               .n_rows = as_int(dy.rows()),
               .dim = as_int(dy.row_size()),
               .dy_type = dy.dtype()},
              stream);
}

void gate_mul_backward(const Tensor& gate_up, const Tensor& da, const Tensor& a_columns,
                       const int32_t* columns, Gate gate, Stream stream) {
  check_stream("gate_mul_backward", gate_up, stream);
  TANDEM_CHECK(da.empty() || (da.dtype() == gate_up.dtype() && da.rows() == gate_up.rows() &&
                              2 * da.row_size() == gate_up.row_size()),
               "gate_mul_backward: da does not fit gate_up [{}, {}]", gate_up.rows(),
               gate_up.row_size());
  TANDEM_CHECK(a_columns.empty() ||
                   (a_columns.dtype() == gate_up.dtype() && a_columns.rows() == gate_up.rows()),
               "gate_mul_backward: a_columns differs from gate_up in dtype or rows");
  const GateMulBackwardParams p{.gate_up = gate_up.raw(),
                                .da = da.raw(),
                                .a_columns = a_columns.raw(),
                                .columns = columns,
                                .n_rows = as_int(gate_up.rows()),
                                .ffn_dim = as_int(gate_up.row_size() / 2),
                                .n_columns = a_columns.empty() ? 0 : as_int(a_columns.row_size()),
                                .act = gate_up.dtype(),
                                .gate = gate};
  TANDEM_OPERATION(gate_mul_backward).run(p, p.n_rows, row_bytes(gate_up), stream);
}

void row_norms_backward(const Tensor& dqkv, const Tensor& qkv, const RowNorms& norms, float* dnorms,
                        Stream stream) {
  check_stream("row_norms_backward", dqkv, stream);
  TANDEM_CHECK(qkv.dtype() == dqkv.dtype() && qkv.elements() == dqkv.elements() &&
                   dqkv.row_size() == norms.q_dim + 2 * norms.kv_dim,
               "row_norms_backward: the projection does not fit its gradient [{}, {}]", dqkv.rows(),
               dqkv.row_size());
  const RowNormsBackwardParams p{.dqkv = dqkv.raw(),
                                 .qkv = qkv.raw(),
                                 .q_norm = norms.q,
                                 .k_norm = norms.k,
                                 .dnorms = dnorms,
                                 .n_rows = as_int(dqkv.rows()),
                                 .q_dim = norms.q_dim,
                                 .kv_dim = norms.kv_dim,
                                 .eps = norms.eps,
                                 .act = dqkv.dtype()};
  TANDEM_OPERATION(row_norms_backward).run(p, p.n_rows, row_bytes(dqkv), stream);
}

void rope_backward(const RopeBackwardArgs& a, Stream stream) {
  check_stream("rope_backward", a.dqkv, stream);
  const int64_t heads = a.n_heads + 2 * int64_t{a.n_kv_heads};
  TANDEM_CHECK(a.norms.q == nullptr ||
                   (a.qkv.dtype() == a.dqkv.dtype() && a.qkv.elements() == a.dqkv.elements()),
               "rope_backward with norms needs the projected qkv");
  const RopeBackwardParams p{.dqkv = a.dqkv.raw(),
                             .cos_table = a.rope.cos(),
                             .sin_table = a.rope.sin(),
                             .pos = a.pos,
                             .n_rows = as_int(a.dqkv.rows()),
                             .n_heads = a.n_heads,
                             .n_kv_heads = a.n_kv_heads,
                             .head_dim = as_int(a.dqkv.row_size() / heads),
                             .act = a.dqkv.dtype(),
                             .qkv = a.qkv.raw(),
                             .q_norm = a.norms.q,
                             .k_norm = a.norms.k,
                             .norm_eps = a.norms.eps,
                             .dnorms = a.dnorms,
                             .rotated = a.rope.dims()};
  TANDEM_OPERATION(rope_backward).run(p, p.n_rows, row_bytes(a.dqkv), stream);
}

size_t attention_backward_workspace_bytes(int max_rows, int n_heads, int n_kv_heads, int head_dim,
                                          DType act, Device device) {
  if (device.kind == Device::Kind::cuda)
    return attention_backward_cuda_workspace_bytes(max_rows, n_heads, n_kv_heads, head_dim, act);
  return tandem::attention_backward_workspace_bytes(max_rows, n_heads / n_kv_heads, head_dim,
                                                    max_threads());
}

void attention_backward(const AttentionBackwardArgs& a, std::span<std::byte> workspace,
                        Stream stream) {
  check_stream("attention_backward", a.q, stream);
  const DType act = a.q.dtype();
  TANDEM_CHECK(a.dqkv.dtype() == act && a.dout.dtype() == act && a.out.dtype() == act &&
                   a.k.dtype() == act && a.v.dtype() == act,
               "attention_backward: dtypes of the operands differ");
  TANDEM_CHECK(a.step.tree_mask == nullptr && a.step.tentative == nullptr,
               "attention_backward does not support token trees");
  const AttentionBackwardParams p{.dqkv = a.dqkv.raw(),
                                  .dout = a.dout.raw(),
                                  .out = a.out.raw(),
                                  .lse = a.lse,
                                  .q = a.q.raw(),
                                  .k_pool = a.k.raw(),
                                  .v_pool = a.v.raw(),
                                  .page_table = a.step.page_table,
                                  .slot = a.step.slot,
                                  .row_begin = a.step.row_begin,
                                  .act = act,
                                  .n_seqs = a.step.n_seqs,
                                  .max_pages = a.step.max_pages,
                                  .n_heads = as_int(a.q.size(1)),
                                  .n_kv_heads = as_int(a.k.size(1)),
                                  .head_dim = as_int(a.q.size(2)),
                                  .window = a.window,
                                  .scale = a.scale};
  const bool on_gpu = stream.handle != nullptr;
  const size_t needed =
      attention_backward_workspace_bytes(on_gpu ? a.step.n_rows : a.step.max_rows_a_seq, p.n_heads,
                                         p.n_kv_heads, p.head_dim, act, a.q.device());
  TANDEM_CHECK(workspace.size() >= needed, "attention_backward: workspace has {} bytes, needs {}",
               workspace.size(), needed);
  if (!on_gpu) return attention_backward_cpu(p, workspace.data());
  cuda_table().attention_backward(p,
                                  {.n_rows = a.step.n_rows,
                                   .max_rows_a_seq = a.step.max_rows_a_seq,
                                   .workspace = workspace.data()},
                                  stream);
  cuda::launched("attention_backward", stream);
}

void cross_entropy(const CrossEntropyArgs& a, Stream stream) {
  check_stream("cross_entropy", a.logits, stream);
  TANDEM_CHECK(a.logits.dtype() == DType::f32 &&
                   (a.dlogits.empty() || a.dlogits.elements() == a.logits.elements()),
               "cross_entropy: logits [{}, {}] are not f32 or dlogits do not fit", a.logits.rows(),
               a.logits.row_size());
  const CrossEntropyParams p{.logits = a.logits.as<float>(),
                             .dlogits = a.dlogits.raw(),
                             .loss = a.loss,
                             .targets = a.targets,
                             .scale = a.scale,
                             .n_rows = as_int(a.logits.rows()),
                             .vocab = as_int(a.logits.row_size()),
                             .act = a.dlogits.empty() ? DType::f32 : a.dlogits.dtype()};
  TANDEM_OPERATION(cross_entropy).run(p, p.n_rows, row_bytes(a.logits), stream);
}

void embedding_gradient(const Tensor& dtable, const Tensor& dx, const TokenRows& by_token,
                        const int32_t* lists, Stream stream) {
  const int n = by_token.n_tokens;
  TANDEM_CHECK(dx.row_size() == dtable.row_size() &&
                   static_cast<int64_t>(by_token.lists.size()) == 2 * n + 1 + dx.rows(),
               "embedding_gradient: dx [{}, {}] does not fit the table or the token lists",
               dx.rows(), dx.row_size());
  check_stream("embedding_gradient", dx, stream);
  const EmbedBackwardParams p{.dtable = dtable.as<float>(),
                              .dx = dx.as<float>(),
                              .ids = lists,
                              .begin = lists + n,
                              .rows = lists + 2 * n + 1,
                              .n_ids = n,
                              .dim = as_int(dx.row_size())};
  if (stream.handle != nullptr) {
    return launch(TANDEM_KERNEL(embed_backward), p, stream);
  }
  parallel_ranges(n, 16, [&](int begin, int end) { embed_backward_cpu(p, {begin, end}); });
}

void gather_columns(const Tensor& out, const Tensor& in, const int32_t* columns, Stream stream) {
  check_stream("gather_columns", in, stream);
  TANDEM_CHECK(out.dtype() == in.dtype() && out.rows() == in.rows(),
               "gather_columns: output does not fit input [{}, {}]", in.rows(), in.row_size());
  const GatherColumnsParams p{.out = out.raw(),
                              .in = in.raw(),
                              .columns = columns,
                              .n_rows = as_int(in.rows()),
                              .width = as_int(in.row_size()),
                              .n_columns = as_int(out.row_size()),
                              .act = in.dtype()};
  TANDEM_OPERATION(gather_columns).run(p, p.n_rows, row_bytes(out), stream);
}

void add_elements(std::span<float> sums, const Tensor& matrix, const int32_t* index,
                  Stream stream) {
  check_stream("add_elements", matrix, stream);
  if (stream.handle == nullptr) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += matrix.as<float>()[index[i]];
    return;
  }
  launch(TANDEM_KERNEL(add_elements),
         {.sums = sums.data(),
          .matrix = matrix.as<float>(),
          .index = index,
          .n = static_cast<int64_t>(sums.size())},
         stream);
}

int64_t square_sum_parts(size_t n) { return blocks_of(n); }

double square_sum(std::span<const float> x, double* sums, cuda::Queue* queue) {
  std::vector<double> parts(static_cast<size_t>(blocks_of(x.size())));
  const bool on_gpu = queue != nullptr;
  const SquareSumParams p{on_gpu ? sums : parts.data(), x.data(), static_cast<int64_t>(x.size())};
  TANDEM_OPERATION(square_sum)
      .run(p, blocks_of(x.size()), kOptimBlock * int64_t{sizeof(float)},
           on_gpu ? queue->stream() : Stream{});
  if (on_gpu) {
    queue->copy_out(parts.data(), sums, parts.size() * sizeof(double));
    queue->wait();
  }
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

void adamw(const AdamWArgs& a, const AdamW& by, int64_t t, float gradient_scale, Stream stream) {
  const size_t n = a.weights.size();
  TANDEM_CHECK(a.first.size() == n && a.second.size() == n && a.gradient.size() == n &&
                   (a.base.empty() || a.base.size() == n) && t > 0,
               "AdamW: sizes differ from {} weights, or step {} is below 1", n, t);
  const AdamWParams p{.weights = a.weights.data(),
                      .first = a.first.data(),
                      .second = a.second.data(),
                      .gradient = a.gradient.data(),
                      .n = static_cast<int64_t>(n),
                      .by = step_of(by, t, gradient_scale),
                      .base = a.base.empty() ? nullptr : a.base.data()};
  TANDEM_OPERATION(adamw).run(p, blocks_of(n), 7 * kOptimBlock * int64_t{sizeof(float)}, stream);
}

void adamw_narrow(const AdamWNarrowArgs& a, const AdamW& by, int64_t t, float gradient_scale,
                  Stream stream) {
  const size_t n = a.gradient.size();
  TANDEM_CHECK(a.first.size() == n && a.second.size() == n &&
                   (a.base.empty() || a.base.size() == n) && t > 0,
               "AdamW: sizes differ from {} weights, or step {} is below 1", n, t);
  const AdamWNarrowParams p{.weights = a.weights,
                            .first = a.first.data(),
                            .second = a.second.data(),
                            .gradient = a.gradient.data(),
                            .n = static_cast<int64_t>(n),
                            .by = step_of(by, t, gradient_scale),
                            .weight_type = a.weight_type,
                            .stochastic = a.seed.has_value(),
                            .seed = a.seed.value_or(0),
                            .step = static_cast<uint32_t>(t),
                            .first_element = a.first_element,
                            .base = a.base.empty() ? nullptr : a.base.data()};
  TANDEM_OPERATION(adamw_narrow)
      .run(p, blocks_of(n), 4 * kOptimBlock * int64_t{sizeof(float)}, stream);
}

}  // namespace tandem::ops
