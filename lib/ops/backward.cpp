#include "ops/backward.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"

namespace tandem::ops {
namespace {

int as_int(int64_t n) { return static_cast<int>(n); }

/// Runs a body on items, each of which moves about item_bytes.
template <class Params>
void run(void (*body)(const Params&, Range), const Params& p, int64_t n_items, int64_t item_bytes) {
  constexpr int64_t kGrainBytes = 65536;  // outweighs waking a thread
  const int grain = as_int(1 + kGrainBytes / std::max<int64_t>(1, item_bytes));
  parallel_ranges(as_int(n_items), grain, [&](int begin, int end) { body(p, Range{begin, end}); });
}

int64_t row_bytes(const Tensor& t) { return t.row_size() * int64_t{sizeof(float)}; }

int blocks_of(size_t n) {
  return as_int((static_cast<int64_t>(n) + kOptimBlock - 1) / kOptimBlock);
}

void add_columns(const ColumnSumsParams& p) {
  run(cpu_table().column_sums, p, p.dim, p.n_rows * int64_t{sizeof(float)});
}

}  // namespace

void rms_norm_backward(const RmsNormBackwardArgs& a) {
  TANDEM_CHECK(a.dx.dtype() == DType::f32 && a.dx.row_size() == a.dy.row_size() &&
                   a.x.row_size() == a.dy.row_size() && a.x.rows() == a.dx.rows() &&
                   (a.rows != nullptr || a.dy.rows() == a.x.rows()),
               "rms_norm_backward of [{}, {}] to [{}, {}]", a.dy.rows(), a.dy.row_size(),
               a.dx.rows(), a.dx.row_size());
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
                                .inverse = a.inverse};
  run(cpu_table().rms_norm_backward, p, p.n_rows, row_bytes(a.dy));
}

void norm_weight_gradient(float* dweight, const RmsNormBackwardArgs& a) {
  TANDEM_CHECK(a.inverse != nullptr, "a norm's gradient without its scales");
  add_columns({.sums = dweight,
               .dy = a.dy.raw(),
               .n_rows = as_int(a.dy.rows()),
               .dim = as_int(a.dy.row_size()),
               .dy_type = a.dy.dtype(),
               .x = a.x.raw(),
               .scale = a.inverse,
               .x_type = a.x.dtype(),
               .rows = a.rows});
}

void bias_gradient(float* dbias, const Tensor& dy) {
  add_columns({.sums = dbias,
               .dy = dy.raw(),
               .n_rows = as_int(dy.rows()),
               .dim = as_int(dy.row_size()),
               .dy_type = dy.dtype()});
}

void silu_mul_backward(const Tensor& gate_up, const Tensor& da, const Tensor& a_columns,
                       const int32_t* columns) {
  TANDEM_CHECK(da.empty() || (da.dtype() == gate_up.dtype() && da.rows() == gate_up.rows() &&
                              2 * da.row_size() == gate_up.row_size()),
               "silu_mul_backward of [{}, {}]", gate_up.rows(), gate_up.row_size());
  TANDEM_CHECK(a_columns.empty() ||
                   (a_columns.dtype() == gate_up.dtype() && a_columns.rows() == gate_up.rows()),
               "columns of another dtype or number of rows than gate_up");
  const SiluMulBackwardParams p{.gate_up = gate_up.raw(),
                                .da = da.raw(),
                                .a_columns = a_columns.raw(),
                                .columns = columns,
                                .n_rows = as_int(gate_up.rows()),
                                .ffn_dim = as_int(gate_up.row_size() / 2),
                                .n_columns = a_columns.empty() ? 0 : as_int(a_columns.row_size()),
                                .act = gate_up.dtype()};
  run(cpu_table().silu_mul_backward, p, p.n_rows, row_bytes(gate_up));
}

void rope_backward(const RopeBackwardArgs& a) {
  const int64_t heads = a.n_heads + 2 * int64_t{a.n_kv_heads};
  TANDEM_CHECK(a.norms.q == nullptr ||
                   (a.qkv.dtype() == a.dqkv.dtype() && a.qkv.elements() == a.dqkv.elements()),
               "rope_backward with norms, without the projection");
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
                             .dnorms = a.dnorms};
  run(cpu_table().rope_backward, p, p.n_rows, row_bytes(a.dqkv));
}

size_t attention_backward_workspace_bytes(int max_rows, int n_heads, int n_kv_heads, int head_dim) {
  return tandem::attention_backward_workspace_bytes(max_rows, n_heads / n_kv_heads, head_dim,
                                                    max_threads());
}

void attention_backward(const AttentionBackwardArgs& a, std::span<std::byte> workspace) {
  const DType act = a.q.dtype();
  TANDEM_CHECK(a.dqkv.dtype() == act && a.dout.dtype() == act && a.out.dtype() == act &&
                   a.k.dtype() == act && a.v.dtype() == act,
               "attention_backward mixes dtypes");
  TANDEM_CHECK(a.step.tree_mask == nullptr && a.step.tentative == nullptr,
               "attention_backward of a tree");
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
  const size_t needed = attention_backward_workspace_bytes(a.step.max_rows_a_seq, p.n_heads,
                                                           p.n_kv_heads, p.head_dim);
  TANDEM_CHECK(workspace.size() >= needed, "attention_backward with {} bytes of {}",
               workspace.size(), needed);
  attention_backward_cpu(p, workspace.data());
}

void cross_entropy(const CrossEntropyArgs& a) {
  TANDEM_CHECK(a.logits.dtype() == DType::f32 &&
                   (a.dlogits.empty() || a.dlogits.elements() == a.logits.elements()),
               "cross_entropy of [{}, {}]", a.logits.rows(), a.logits.row_size());
  const CrossEntropyParams p{.logits = a.logits.as<float>(),
                             .dlogits = a.dlogits.raw(),
                             .loss = a.loss,
                             .targets = a.targets,
                             .scale = a.scale,
                             .n_rows = as_int(a.logits.rows()),
                             .vocab = as_int(a.logits.row_size()),
                             .act = a.dlogits.empty() ? DType::f32 : a.dlogits.dtype()};
  run(cpu_table().cross_entropy, p, p.n_rows, row_bytes(a.logits));
}

void embedding_gradient(const Tensor& dtable, const Tensor& dx, std::span<const int32_t> ids) {
  TANDEM_CHECK(dx.rows() == static_cast<int64_t>(ids.size()) && dx.row_size() == dtable.row_size(),
               "embedding_gradient of [{}, {}]", dx.rows(), dx.row_size());
  const int64_t dim = dx.row_size();
  // Threads divide columns: a token may occur in any row.
  parallel_ranges(as_int(dim), 256, [&](int begin, int end) {
    for (size_t r = 0; r < ids.size(); ++r) {
      float* to = dtable.as<float>() + ids[r] * dim;
      const float* from = dx.as<float>() + static_cast<int64_t>(r) * dim;
      for (int c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

void gather_columns(const Tensor& out, const Tensor& in, const int32_t* columns) {
  TANDEM_CHECK(out.dtype() == in.dtype() && out.rows() == in.rows(), "columns of [{}, {}]",
               in.rows(), in.row_size());
  const GatherColumnsParams p{.out = out.raw(),
                              .in = in.raw(),
                              .columns = columns,
                              .n_rows = as_int(in.rows()),
                              .width = as_int(in.row_size()),
                              .n_columns = as_int(out.row_size()),
                              .act = in.dtype()};
  run(cpu_table().gather_columns, p, p.n_rows, row_bytes(out));
}

double square_sum(std::span<const float> x) {
  std::vector<double> sums(static_cast<size_t>(blocks_of(x.size())));
  const SquareSumParams p{sums.data(), x.data(), static_cast<int64_t>(x.size())};
  run(cpu_table().square_sum, p, blocks_of(x.size()), kOptimBlock * int64_t{sizeof(float)});
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void adamw(const AdamWArgs& a, const AdamW& by, int64_t t, float gradient_scale) {
  const size_t n = a.weights.size();
  TANDEM_CHECK(a.first.size() == n && a.second.size() == n && a.gradient.size() == n &&
                   (a.base.empty() || a.base.size() == n) && t > 0,
               "AdamW of {} weights, step {}", n, t);
  const auto correction = [&](float beta) {
    return static_cast<float>(1 - std::pow(double{beta}, static_cast<double>(t)));
  };
  const AdamWParams p{.weights = a.weights.data(),
                      .first = a.first.data(),
                      .second = a.second.data(),
                      .gradient = a.gradient.data(),
                      .n = static_cast<int64_t>(n),
                      .gradient_scale = gradient_scale,
                      .learning_rate = by.learning_rate,
                      .beta1 = by.beta1,
                      .beta2 = by.beta2,
                      .epsilon = by.epsilon,
                      .weight_decay = by.weight_decay,
                      .correction1 = correction(by.beta1),
                      .correction2 = correction(by.beta2),
                      .base = a.base.empty() ? nullptr : a.base.data()};
  run(cpu_table().adamw, p, blocks_of(n), 7 * kOptimBlock * int64_t{sizeof(float)});
}

}  // namespace tandem::ops
