#include "train/backward.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "train/documents.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

}  // namespace

Backward::Backward(const BackwardSpec& spec, const TrainedSet& set, model::Llama& model,
                   kv::Cache& cache, Arena& arena)
    : spec_(spec),
      set_(set),
      frontier_(frontier_of(set, spec.config, spec.recompute)),
      model_(model),
      cache_(cache),
      buffers_(spec_, frontier_, arena) {
  if (set.low_rank.rank > 0) low_rank_ = std::make_unique<LowRank>(spec_, set, model, arena);
}

double Backward::run(const MicroBatch& batch, float scale, std::span<float> gradient,
                     const MicroBatchName& name) {
  n_rows_ = static_cast<int64_t>(batch.tokens.size());
  TANDEM_CHECK(n_rows_ <= spec_.max_rows && batch.targets.size() == batch.tokens.size() &&
                   !batch.document_begin.empty() && batch.document_begin.front() == 0 &&
                   batch.document_begin.back() == n_rows_,
               "a micro-batch of {} rows, at most {}", n_rows_, spec_.max_rows);
  gradient_ = gradient;
  Supervised supervised;
  for (size_t r = 0; r < batch.targets.size(); ++r) {
    if (batch.targets[r] < 0) continue;
    supervised.rows.push_back(static_cast<int32_t>(r));
    supervised.targets.push_back(batch.targets[r]);
  }
  if (supervised.rows.empty()) return 0;

  Documents documents(cache_, batch.document_begin);
  const kv::Step step = documents.begin();
  const bool backward = !gradient.empty();
  if (low_rank_) low_rank_->begin(name, backward);
  model_.forward(batch.tokens, step, cache_,
                 backward ? std::span<const model::LayerActivations>(buffers_.kept)
                          : std::span<const model::LayerActivations>{});
  const double loss = head(supervised, scale);
  for (int i = spec_.config.n_layers; backward && i-- > frontier_.first();) {
    poll(spec_.interrupted);
    const model::LayerActivations kept = activations(i, step);
    ffn(i, kept);
    if (frontier_.layers[static_cast<size_t>(i)].middle) attention(i, kept, step);
  }
  if (backward && set_.embedding.trained()) embedding(batch.tokens);
  return loss;
}

double Backward::head(const Supervised& supervised, float scale) {
  const bool backward = !gradient_.empty();
  if (backward) std::fill_n(buffers_.dstream, n_rows_ * spec_.config.dim, 0.0f);
  const model::Weights& w = model_.weights();
  const int64_t most = std::min(spec_.head_rows, spec_.max_rows), vocab = spec_.config.vocab_size;
  const auto total = static_cast<int64_t>(supervised.rows.size());
  double loss = 0;
  for (int64_t begin = 0; begin < total; begin += most) {
    const int64_t n = std::min(most, total - begin);
    const int32_t* rows = supervised.rows.data() + begin;
    const Tensor logits(buffers_.logits, DType::f32, {n, vocab});
    const Tensor dlogits(buffers_.dlogits, spec_.dtype, {n, vocab});
    model_.logits(logits, rows);
    ops::cross_entropy({.logits = logits,
                        .dlogits = backward ? dlogits : Tensor{},
                        .loss = buffers_.losses,
                        .targets = supervised.targets.data() + begin,
                        .scale = scale});
    for (int64_t i = 0; i < n; ++i) loss += double{buffers_.losses[i]};
    if (!backward) continue;
    weight_gradient(set_.lm_head, dlogits, model_.head_in(n));
    const Tensor dnormed(buffers_.dnormed, spec_.dtype, {n, spec_.config.dim});
    ops::linear_input_gradient(dnormed, dlogits, w.lm_head, ops::Accumulate::no,
                               buffers_.workspace);
    norm_backward({.dx = stream(),
                   .dy = dnormed,
                   .x = model_.residual(),
                   .weight = w.out_norm,
                   .rows = rows});
  }
  return loss;
}

model::LayerActivations Backward::activations(int index, const kv::Step& step) {
  using Again = LayerFrontier::Again;
  const LayerFrontier& f = frontier_.layers[static_cast<size_t>(index)];
  model::LayerActivations kept = buffers_.kept[static_cast<size_t>(index)];
  if (f.again == Again::none) return kept;
  kept.gate_up = buffers_.again.gate_up;
  if (f.again == Again::layer) {
    if (f.reads_qkv) kept.qkv = buffers_.again.qkv;
    kept.q = buffers_.again.q;
    kept.lse = buffers_.again.lse;
    kept.attended = buffers_.again.attended;
    kept.residual_mid = buffers_.again.residual_mid;
  }
  model_.run_again(index, step, cache_, kept, f.again == Again::gate_up);
  return kept;
}

void Backward::ffn(int index, const model::LayerActivations& kept) {
  const auto i = static_cast<size_t>(index);
  const LayerFrontier& f = frontier_.layers[i];
  const TrainedLayer& t = set_.layers[i];
  const model::LayerWeights& w = model_.weights().layers[i];
  const Tensor dy = through_factors(index, model::LayerMatrix::w_down, narrow_stream());
  const Tensor gate_up = act(kept.gate_up, 2 * int64_t{spec_.config.ffn_dim});
  Tensor da, columns;
  if (f.gate_up) {
    da = act(buffers_.dwide, spec_.config.ffn_dim);
    input_gradient(da, dy, w.w_down);
  }
  const bool listed = t.w_down.part == Part::columns;
  if (t.w_down.trained())
    columns = act(buffers_.listed, listed ? t.w_down.cols : int64_t{spec_.config.ffn_dim});
  if (low_rank_) low_rank_->keep_outputs(index, model::LayerMatrix::gate_up, gate_up);
  ops::silu_mul_backward(gate_up, da, columns, listed ? t.w_down.index.data() : nullptr);
  weight_gradient(t.w_down, dy, columns);
  if (!f.gate_up) return;
  through_factors(index, model::LayerMatrix::gate_up, gate_up);  // in place
  weight_gradient(t.gate_up, gate_up,
                  t.gate_up.trained() ? normed_again(w.norms.ffn, kept.residual_mid) : Tensor{});
  if (f.middle) through_normed_linear(gate_up, w.gate_up, w.norms.ffn, kept.residual_mid);
}

void Backward::attention(int index, const model::LayerActivations& kept, const kv::Step& step) {
  const auto i = static_cast<size_t>(index);
  const LayerFrontier& f = frontier_.layers[i];
  const TrainedLayer& t = set_.layers[i];
  const model::ModelConfig& c = spec_.config;
  const model::LayerWeights& w = model_.weights().layers[i];
  const Tensor dy = through_factors(index, model::LayerMatrix::wo, narrow_stream());
  Tensor attended = act(kept.attended, c.q_dim());
  if (t.wo.part == Part::columns) {
    const Tensor all = attended;
    attended = act(buffers_.listed, t.wo.cols);
    ops::gather_columns(attended, all, t.wo.index.data());
  }
  weight_gradient(t.wo, dy, attended);
  if (!f.attention) return;

  const Tensor dattended = act(buffers_.dwide, c.q_dim());
  input_gradient(dattended, dy, w.wo);
  const auto heads = [&](void* at) {
    return Tensor(at, spec_.dtype, {n_rows_, c.n_heads, c.head_dim});
  };
  const int64_t qkv_dim = c.q_dim() + 2 * int64_t{c.kv_dim()};
  const Tensor dqkv = act(buffers_.dqkv, qkv_dim);
  ops::attention_backward({.dqkv = dqkv,
                           .dout = heads(buffers_.dwide),
                           .out = heads(kept.attended),
                           .lse = kept.lse,
                           .q = heads(kept.q),
                           .k = cache_.k(index),
                           .v = cache_.v(index),
                           .step = step.arrays,
                           .window = c.window(index),
                           .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))},
                          buffers_.workspace);
  const bool head_norms = set_.norms && c.qk_norm;
  ops::rope_backward({.dqkv = dqkv,
                      .rope = model_.rope(),
                      .pos = step.arrays.pos,
                      .n_heads = c.n_heads,
                      .n_kv_heads = c.n_kv_heads,
                      .qkv = c.qk_norm ? act(kept.qkv, qkv_dim) : Tensor{},
                      .norms = {w.norms.q, w.norms.k, static_cast<float>(c.rms_eps)},
                      .dnorms = head_norms ? buffers_.dnorms : nullptr});
  // The norm of k follows that of q.
  if (head_norms)
    ops::bias_gradient(norm_gradient(w.norms.q),
                       {buffers_.dnorms, DType::f32, {n_rows_, 2 * int64_t{c.head_dim}}});
  through_factors(index, model::LayerMatrix::qkv, dqkv,
                  f.reads_qkv ? act(kept.qkv, qkv_dim) : Tensor{});  // in place
  weight_gradient(t.qkv, dqkv,
                  t.qkv.trained() ? normed_again(w.norms.attn, kept.residual_in) : Tensor{});
  if (f.input) through_normed_linear(dqkv, w.qkv, w.norms.attn, kept.residual_in);
}

void Backward::embedding(std::span<const int32_t> tokens) {
  ops::embedding_gradient(flat(set_.embedding.offset, set_.embedding.rows, set_.embedding.cols),
                          stream(), tokens);
}

Tensor Backward::through_factors(int layer, model::LayerMatrix of, const Tensor& dy,
                                 const Tensor& y) {
  return low_rank_ ? low_rank_->back_through_b(layer, of, dy, y, gradient_) : dy;
}

void Backward::input_gradient(const Tensor& dx, const Tensor& dy, const ops::PackedWeights& w) {
  ops::linear_input_gradient(dx, dy, w, ops::Accumulate::no, buffers_.workspace);
  if (low_rank_) low_rank_->add_input_gradient(dx);
}

void Backward::weight_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x) {
  if (m.bias) ops::bias_gradient(gradient_.data() + m.bias_offset, dy);
  if (!m.trained()) return;
  if (m.part == Part::elements) return scattered_gradient(m, dy, x);
  if (m.part == Part::low_rank) return low_rank_->a_gradient(x, gradient_);
  Tensor listed = dy;
  if (m.part == Part::rows) {
    listed = {buffers_.listed, dy.dtype(), {dy.rows(), m.rows}};
    ops::gather_columns(listed, dy, m.index.data());
  }
  ops::linear_weight_gradient(flat(m.offset, m.rows, m.cols), listed, x, buffers_.workspace);
}

void Backward::scattered_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x) {
  const Tensor all(buffers_.dense, DType::f32, {dy.row_size(), x.row_size()});
  std::fill_n(buffers_.dense, all.elements(), 0.0f);
  ops::linear_weight_gradient(all, dy, x, buffers_.workspace);
  float* const to = gradient_.data() + m.offset;
  for (size_t i = 0; i < m.index.size(); ++i) to[i] += buffers_.dense[m.index[i]];
}

void Backward::through_normed_linear(const Tensor& dy, const ops::PackedWeights& w,
                                     const float* norm, const void* kept) {
  const Tensor dnormed = act(buffers_.dnormed, spec_.config.dim);
  input_gradient(dnormed, dy, w);
  norm_backward({.dx = stream(), .dy = dnormed, .x = widened(kept), .weight = norm});
}

void Backward::norm_backward(ops::RmsNormBackwardArgs args) {
  args.eps = static_cast<float>(spec_.config.rms_eps);
  args.inverse = set_.norms ? buffers_.inverse : nullptr;
  ops::rms_norm_backward(args);
  if (set_.norms) ops::norm_weight_gradient(norm_gradient(args.weight), args);
}

Tensor Backward::widened(const void* kept) {
  const Tensor narrow = act(const_cast<void*>(kept), spec_.config.dim);
  if (spec_.dtype == DType::f32) return narrow;
  ops::convert(buffers_.wide, DType::f32, narrow.raw(), spec_.dtype, narrow.elements());
  return {buffers_.wide, DType::f32, {n_rows_, spec_.config.dim}};
}

Tensor Backward::normed_again(const float* norm, const void* kept) {
  const Tensor normed = act(buffers_.normed, spec_.config.dim);
  ops::rms_norm(normed, widened(kept), norm, static_cast<float>(spec_.config.rms_eps));
  return normed;
}

Tensor Backward::narrow_stream() {
  const Tensor narrow = act(buffers_.dstream_act, spec_.config.dim);
  if (spec_.dtype != DType::f32)
    ops::convert(narrow.raw(), spec_.dtype, buffers_.dstream, DType::f32, narrow.elements());
  return narrow;
}

}  // namespace tandem::train
