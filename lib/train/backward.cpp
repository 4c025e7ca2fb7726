#include "train/backward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "ops/linear_choices.h"
#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "train/documents.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

}  // namespace

Backward::Backward(const BackwardSpec& spec, const TrainedSet& set, model::Llama& model,
                   kv::Cache& cache, Arena& arena, const Exec& exec)
    : spec_(spec),
      set_(set),
      frontier_(frontier_of(set, spec.config, spec.recompute)),
      model_(model),
      cache_(cache),
      exec_(exec),
      buffers_(spec_, frontier_, arena),
      indices_(set, arena, exec) {
  if (set.low_rank.rank > 0) low_rank_ = std::make_unique<LowRank>(spec_, set, model, arena, exec);
}

void Backward::choose_products(int64_t wanted, std::span<float> gradient) {
  if (!exec_.on_gpu()) return;
  model_.choose_products(wanted);
  const int64_t rows = std::min<int64_t>(ops::rows_bucket(wanted), spec_.max_rows);
  const auto layer = static_cast<size_t>(frontier_.first());
  if (!chosen_.insert(rows).second || layer >= frontier_.layers.size()) return;
  n_rows_ = rows;
  gradient_ = gradient;
  void* const wide = buffers_.kept[layer].gate_up != nullptr ? buffers_.kept[layer].gate_up
                                                             : buffers_.again.gate_up;
  const auto product = [&](const TrainedMatrix& m, const ops::PackedWeights& w, void* dy, void* x,
                           void* dx) {
    poll(spec_.interrupted);
    const Tensor of_y = act(dy, w.out());
    ops::fill_random(of_y.raw(), of_y.dtype(), {.n = of_y.elements()}, stream());
    ops::tune_input_gradient(act(dx, w.in()), of_y, w, buffers_.workspace, stream());
    if (gradient_.empty() || !m.trained() || m.part == Part::elements || m.part == Part::low_rank)
      return;
    ops::fill_random(x, spec_.dtype, {.n = n_rows_ * w.in()}, stream());
    ops::tune_weight_gradient(flat(m.offset, m.rows, m.cols),
                              act(dy, m.part == Part::rows ? m.rows : w.out()),
                              act(x, m.part == Part::columns ? m.cols : w.in()),
                              ops::Accumulate::yes, buffers_.workspace, stream());
    if (m.part == Part::all)
      ops::tune_weight_gradient(flat(m.offset, m.rows, m.cols), of_y, act(x, w.in()),
                                ops::Accumulate::no, buffers_.workspace, stream());
  };
  const model::LayerWeights& w = model_.weights().layers[layer];
  const TrainedLayer& t = set_.layers[layer];
  product(t.w_down, w.w_down, buffers_.dstream_act, buffers_.dwide, buffers_.dwide);
  product(t.gate_up, w.gate_up, wide, buffers_.normed, buffers_.dnormed);
  product(t.wo, w.wo, buffers_.dstream_act, buffers_.dwide, buffers_.dwide);
  product(t.qkv, w.qkv, buffers_.dqkv, buffers_.normed, buffers_.dnormed);
}

const int32_t* Backward::placed(std::span<const int32_t> list, int32_t* place) const {
  if (!exec_.on_gpu()) return list.data();
  exec_.queue->copy_in(place, list.data(), list.size_bytes());
  return place;
}

double Backward::run(const MicroBatch& batch, float scale, std::span<float> gradient,
                     const MicroBatchName& name, ops::Accumulate accumulate) {
  n_rows_ = static_cast<int64_t>(batch.tokens.size());
  TANDEM_CHECK(n_rows_ <= spec_.max_rows && batch.targets.size() == batch.tokens.size() &&
                   !batch.document_begin.empty() && batch.document_begin.front() == 0 &&
                   batch.document_begin.back() == n_rows_,
               "a micro-batch of {} rows, at most {}", n_rows_, spec_.max_rows);
  std::vector<int32_t> rows, targets;  // supervised
  for (size_t r = 0; r < batch.targets.size(); ++r) {
    if (batch.targets[r] < 0) continue;
    rows.push_back(static_cast<int32_t>(r));
    targets.push_back(batch.targets[r]);
  }
  if (rows.empty()) return 0;
  choose_products(n_rows_, {});
  n_rows_ = static_cast<int64_t>(batch.tokens.size());
  gradient_ = gradient;
  accumulate_ = accumulate;
  if (accumulate == ops::Accumulate::no && !gradient.empty()) clear_gradient();

  Documents documents(cache_, batch.document_begin);
  const kv::Step step = documents.begin();
  const bool backward = !gradient.empty();
  if (low_rank_) low_rank_->begin(name, backward);
  model_.forward(batch.tokens, step, cache_,
                 backward ? std::span<const model::LayerActivations>(buffers_.kept)
                          : std::span<const model::LayerActivations>{});
  const auto n_supervised = static_cast<int64_t>(rows.size());
  head({placed(rows, buffers_.rows), placed(targets, buffers_.targets), n_supervised}, scale);
  for (int i = spec_.config.n_layers; backward && i-- > frontier_.first();) {
    poll(spec_.interrupted);
    const model::LayerActivations kept = activations(i, step);
    ffn(i, kept);
    if (frontier_.layers[static_cast<size_t>(i)].middle) attention(i, kept, step);
  }
  if (backward && set_.embedding.trained()) embedding(batch.tokens);
  return sum_of_losses(n_supervised);
}

bool Backward::writes_whole(const TrainedMatrix& m) const {
  return m.part == Part::all && &m != &set_.lm_head && &m != &set_.embedding;
}

void Backward::clear_gradient() {
  int64_t begin = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > begin) ops::clear(gradient_.data() + begin, end - begin, stream());
  };
  each_matrix(set_, [&](const TrainedMatrix& m) {
    if (!writes_whole(m)) return;
    clear_to(m.offset);
    begin = m.offset + m.size();
  });
  clear_to(set_.size);
}

void Backward::head(const Supervised& supervised, float scale) {
  const bool backward = !gradient_.empty();
  if (backward) ops::clear(buffers_.dstream, n_rows_ * spec_.config.dim, stream());
  const model::Weights& w = model_.weights();
  const int64_t most = std::min(spec_.head_rows, spec_.max_rows), vocab = spec_.config.vocab_size;
  for (int64_t begin = 0; begin < supervised.n; begin += most) {
    const int64_t n = std::min(most, supervised.n - begin);
    const int32_t* rows = supervised.rows + begin;
    const Tensor logits = tensor(buffers_.logits, DType::f32, n, vocab);
    const Tensor dlogits = tensor(buffers_.dlogits, spec_.dtype, n, vocab);
    model_.choose_logit_products(n, logits);
    model_.logits(logits, rows);
    ops::cross_entropy({.logits = logits,
                        .dlogits = backward ? dlogits : Tensor{},
                        .loss = buffers_.losses + begin,
                        .targets = supervised.targets + begin,
                        .scale = scale},
                       stream());
    if (!backward) continue;
    weight_gradient(set_.lm_head, dlogits, model_.head_in(n));
    const Tensor dnormed = tensor(buffers_.dnormed, spec_.dtype, n, spec_.config.dim);
    ops::linear_input_gradient(dnormed, dlogits, w.lm_head, ops::Accumulate::no, buffers_.workspace,
                               stream());
    norm_backward({.dx = dresidual(),
                   .dy = dnormed,
                   .x = model_.residual(),
                   .weight = w.out_norm,
                   .rows = rows});
  }
}

double Backward::sum_of_losses(int64_t n) const {
  const auto* losses = buffers_.losses;
  std::vector<float> copy;
  if (exec_.on_gpu()) {
    copy.resize(static_cast<size_t>(n));
    exec_.queue->copy_out(copy.data(), losses, copy.size() * sizeof(float));
    exec_.queue->wait();
    losses = copy.data();
  }
  return std::accumulate(losses, losses + n, 0.0);
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
  const bool kept_whole = f.keeps_ffn;
  if (t.w_down.trained() && !kept_whole)
    columns = act(buffers_.listed, listed ? t.w_down.cols : int64_t{spec_.config.ffn_dim});
  if (low_rank_) low_rank_->keep_outputs(index, model::LayerMatrix::gate_up, gate_up);
  ops::silu_mul_backward(gate_up, da, columns, listed ? indices_.of(t.w_down).data() : nullptr,
                         stream());
  weight_gradient(t.w_down, dy, kept_whole ? act(kept.ffn, spec_.config.ffn_dim) : columns);
  if (!f.gate_up) return;
  through_factors(index, model::LayerMatrix::gate_up, gate_up);  // in place
  weight_gradient(
      t.gate_up, gate_up,
      t.gate_up.trained() ? normed(w.norms.ffn, kept.residual_mid, kept.normed_mid) : Tensor{});
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
    ops::gather_columns(attended, all, indices_.of(t.wo).data(), stream());
  }
  weight_gradient(t.wo, dy, attended);
  if (!f.attention) return;

  const Tensor dattended = act(buffers_.dwide, c.q_dim());
  input_gradient(dattended, dy, w.wo);
  const auto heads = [&](void* at) {
    return Tensor(at, spec_.dtype, {n_rows_, c.n_heads, c.head_dim}, spec_.device);
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
                          buffers_.workspace, stream());
  const bool head_norms = set_.norms && c.qk_norm;
  ops::rope_backward({.dqkv = dqkv,
                      .rope = model_.rope(),
                      .pos = step.arrays.pos,
                      .n_heads = c.n_heads,
                      .n_kv_heads = c.n_kv_heads,
                      .qkv = c.qk_norm ? act(kept.qkv, qkv_dim) : Tensor{},
                      .norms = {w.norms.q, w.norms.k, static_cast<float>(c.rms_eps)},
                      .dnorms = head_norms ? buffers_.dnorms : nullptr},
                     stream());
  // The norm of k follows that of q.
  if (head_norms)
    ops::bias_gradient(norm_gradient(w.norms.q), f32(buffers_.dnorms, 2 * int64_t{c.head_dim}),
                       stream());
  through_factors(index, model::LayerMatrix::qkv, dqkv,
                  f.reads_qkv ? act(kept.qkv, qkv_dim) : Tensor{});  // in place
  weight_gradient(
      t.qkv, dqkv,
      t.qkv.trained() ? normed(w.norms.attn, kept.residual_in, kept.normed_in) : Tensor{});
  if (f.input) through_normed_linear(dqkv, w.qkv, w.norms.attn, kept.residual_in);
}

void Backward::embedding(std::span<const int32_t> tokens) {
  const ops::TokenRows by_token(tokens);
  ops::embedding_gradient(flat(set_.embedding.offset, set_.embedding.rows, set_.embedding.cols),
                          dresidual(), by_token, placed(by_token.lists, buffers_.token_rows),
                          stream());
}

Tensor Backward::through_factors(int layer, model::LayerMatrix of, const Tensor& dy,
                                 const Tensor& y) {
  return low_rank_ ? low_rank_->back_through_b(layer, of, dy, y, gradient_) : dy;
}

void Backward::input_gradient(const Tensor& dx, const Tensor& dy, const ops::PackedWeights& w) {
  ops::linear_input_gradient(dx, dy, w, ops::Accumulate::no, buffers_.workspace, stream());
  if (low_rank_) low_rank_->add_input_gradient(dx);
}

void Backward::weight_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x) {
  if (m.bias) ops::bias_gradient(gradient_.data() + m.bias_offset, dy, stream());
  if (!m.trained()) return;
  if (m.part == Part::elements) return scattered_gradient(m, dy, x);
  if (m.part == Part::low_rank) return low_rank_->a_gradient(x, gradient_);
  Tensor listed = dy;
  if (m.part == Part::rows) {
    listed = tensor(buffers_.listed, dy.dtype(), dy.rows(), m.rows);
    ops::gather_columns(listed, dy, indices_.of(m).data(), stream());
  }
  const auto accumulate = writes_whole(m) ? accumulate_ : ops::Accumulate::yes;
  ops::linear_weight_gradient(flat(m.offset, m.rows, m.cols), listed, x, accumulate,
                              buffers_.workspace, stream());
}

void Backward::scattered_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x) {
  const Tensor all = tensor(buffers_.dense, DType::f32, dy.row_size(), x.row_size());
  ops::linear_weight_gradient(all, dy, x, ops::Accumulate::no, buffers_.workspace, stream());
  ops::add_elements({gradient_.data() + m.offset, m.index.size()}, all, indices_.of(m).data(),
                    stream());
}

void Backward::through_normed_linear(const Tensor& dy, const ops::PackedWeights& w,
                                     const float* norm, const void* kept) {
  const Tensor dnormed = act(buffers_.dnormed, spec_.config.dim);
  input_gradient(dnormed, dy, w);
  const Tensor x = act(const_cast<void*>(kept), spec_.config.dim);
  norm_backward({.dx = dresidual(), .dy = dnormed, .x = x, .weight = norm});
}

void Backward::norm_backward(ops::RmsNormBackwardArgs args) {
  args.eps = static_cast<float>(spec_.config.rms_eps);
  args.inverse = set_.norms ? buffers_.inverse : nullptr;
  ops::rms_norm_backward(args, stream());
  if (set_.norms) ops::norm_weight_gradient(norm_gradient(args.weight), args, stream());
}

Tensor Backward::normed(const float* norm, const void* residual, void* kept) {
  if (kept != nullptr) return act(kept, spec_.config.dim);
  const Tensor normed = act(buffers_.normed, spec_.config.dim);
  Tensor x = act(const_cast<void*>(residual), spec_.config.dim);
  if (spec_.dtype != DType::f32) {
    ops::convert(buffers_.wide, DType::f32, x.raw(), spec_.dtype, x.elements(), stream());
    x = f32(buffers_.wide, spec_.config.dim);
  }
  ops::rms_norm(normed, x, norm, static_cast<float>(spec_.config.rms_eps), stream());
  return normed;
}

Tensor Backward::narrow_stream() {
  const Tensor narrow = act(buffers_.dstream_act, spec_.config.dim);
  if (spec_.dtype != DType::f32)
    ops::convert(narrow.raw(), spec_.dtype, buffers_.dstream, DType::f32, narrow.elements(),
                 stream());
  return narrow;
}

}  // namespace tandem::train
