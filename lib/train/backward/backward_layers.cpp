// Backward through a layer; backward.cpp has the head, the embedding and the order of all.
#include <cmath>

#include "ops/linear_gradient.h"
#include "ops/loading.h"
#include "train/backward/backward.h"

namespace tandem::train {
namespace {

using Part = TrainedMatrix::Part;

}  // namespace

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
    kept.o_out = buffers_.again.o_out;
  }
  model_.run_again(index, step, cache_, kept, f.again == Again::gate_up);
  return kept;
}

void Backward::ffn(int index, const model::LayerActivations& kept) {
  const auto i = static_cast<size_t>(index);
  const LayerFrontier& f = frontier_.layers[i];
  const auto& t = set_.layers[i];
  const model::LayerWeights& w = model_.weights().layers[i];
  const Tensor dy = through_stream(index, model::Role::down, kept.down_out);
  const Tensor gate_up = act(kept.gate_up, 2 * int64_t{spec_.config.ffn_dim});
  Tensor da, columns;
  if (f.gate_up) {
    da = act(buffers_.dwide, spec_.config.ffn_dim);
    input_gradient(da, dy, w[Role::down]);
  }
  const bool listed = t[Role::down].part == Part::columns;
  const bool kept_whole = f.keeps_ffn;
  if (t[Role::down].trained() && !kept_whole)
    columns = act(buffers_.listed, listed ? t[Role::down].cols : int64_t{spec_.config.ffn_dim});
  if (low_rank_) low_rank_->keep_outputs(index, Role::gate_up, gate_up);
  ops::gate_mul_backward(gate_up, da, columns, listed ? indices_.of(t[Role::down]).data() : nullptr,
                         spec_.config.layer(index).ffn.gate, stream());
  weight_gradient(t[Role::down], dy, kept_whole ? act(kept.ffn, spec_.config.ffn_dim) : columns);
  if (!f.gate_up) return;
  through_factors(index, Role::gate_up, gate_up);  // in place
  weight_gradient(t[Role::gate_up], gate_up,
                  t[Role::gate_up].trained()
                      ? normed(w.norms.ffn, kept.residual_mid, kept.normed_mid)
                      : Tensor{});
  if (f.middle) through_normed_linear(gate_up, w[Role::gate_up], w.norms.ffn, kept.residual_mid);
}

void Backward::attention(int index, const model::LayerActivations& kept, const kv::Step& step) {
  const auto i = static_cast<size_t>(index);
  const LayerFrontier& f = frontier_.layers[i];
  const auto& t = set_.layers[i];
  const model::ModelConfig& c = spec_.config;
  const kv::LayerAttention attention = cache_.geometry().at(index);
  const model::LayerWeights& w = model_.weights().layers[i];
  const Tensor dy = through_stream(index, model::Role::o, kept.o_out);
  Tensor attended = act(kept.attended, c.q_dim());
  if (t[Role::o].part == Part::columns) {
    const Tensor all = attended;
    attended = act(buffers_.listed, t[Role::o].cols);
    ops::gather_columns(attended, all, indices_.of(t[Role::o]).data(), stream());
  }
  weight_gradient(t[Role::o], dy, attended);
  if (!f.attention) return;

  const Tensor dattended = act(buffers_.dwide, c.q_dim());
  input_gradient(dattended, dy, w[Role::o]);
  const auto heads = [&](void* at) {
    return Tensor(at, spec_.dtype, {n_rows_, c.n_heads, c.head_dim}, spec_.device);
  };
  const int64_t qkv_dim = c.q_dim() + 2 * int64_t{c.kv_dim()};
  const Tensor dqkv = act(buffers_.dqkv, qkv_dim);
  const kv::LayerKeys keys = cache_.keys(index, step);
  ops::attention_backward({.dqkv = dqkv,
                           .dout = heads(buffers_.dwide),
                           .out = heads(kept.attended),
                           .lse = kept.lse,
                           .q = heads(kept.q),
                           .k = keys.k,
                           .v = keys.v,
                           .step = keys.step,
                           .window = attention.window,
                           .scale = attention.scale.f32()},
                          buffers_.workspace, stream());
  const bool by_head = c.qk_norm() == model::QkNorm::head,
             by_row = c.qk_norm() == model::QkNorm::row;
  const auto eps = static_cast<float>(c.rms_eps);
  float* const dnorms = set_.norms && (by_head || by_row) ? buffers_.dnorms : nullptr;
  ops::rope_backward(
      {.dqkv = dqkv,
       .rope = ops::rope_at(model_.ropes(), attention.rope),
       .pos = step.arrays.pos,
       .n_heads = c.n_heads,
       .n_kv_heads = c.n_kv_heads,
       .qkv = by_head ? act(kept.qkv, qkv_dim) : Tensor{},
       .norms = by_head ? ops::HeadNorms{w.norms.q, w.norms.k, eps} : ops::HeadNorms{},
       .dnorms = by_head ? dnorms : nullptr},
      stream());
  if (by_row)
    ops::row_norms_backward(
        dqkv, act(kept.qkv, qkv_dim),
        {.q = w.norms.q, .k = w.norms.k, .eps = eps, .q_dim = c.q_dim(), .kv_dim = c.kv_dim()},
        dnorms, stream());
  // The norm of k follows that of q.
  if (dnorms != nullptr)
    ops::bias_gradient(norm_gradient(w.norms.q),
                       f32(dnorms, by_row ? c.q_dim() + c.kv_dim() : 2 * c.head_dim), stream());
  through_factors(index, Role::qkv, dqkv,
                  f.reads_qkv ? act(kept.qkv, qkv_dim) : Tensor{});  // in place
  weight_gradient(
      t[Role::qkv], dqkv,
      t[Role::qkv].trained() ? normed(w.norms.attn, kept.residual_in, kept.normed_in) : Tensor{});
  if (f.input) through_normed_linear(dqkv, w[Role::qkv], w.norms.attn, kept.residual_in);
}

Tensor Backward::through_factors(int layer, Role of, const Tensor& dy, const Tensor& y) {
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
  if (set_.norms && args.weight != nullptr)
    ops::norm_weight_gradient(norm_gradient(args.weight), args, stream());
}

Tensor Backward::normed(const float* norm, const void* residual, void* kept) {
  if (kept != nullptr) return act(kept, spec_.config.dim);
  if (norm == nullptr) return act(const_cast<void*>(residual), spec_.config.dim);
  const Tensor normed = act(buffers_.normed, spec_.config.dim);
  Tensor x = act(const_cast<void*>(residual), spec_.config.dim);
  if (spec_.dtype != DType::f32) {
    ops::convert(buffers_.wide, DType::f32, x.raw(), spec_.dtype, x.elements(), stream());
    x = f32(buffers_.wide, spec_.config.dim);
  }
  ops::rms_norm(normed, x, norm, static_cast<float>(spec_.config.rms_eps), stream());
  return normed;
}

Tensor Backward::through_stream(int layer, model::Role of, void* kept) {
  const Tensor narrow = act(buffers_.dstream_act, spec_.config.dim);
  const model::LayerSpec& spec = spec_.config.layer(layer);
  const model::LayerNorms& norms = model_.weights().layers[static_cast<size_t>(layer)].norms;
  if (spec.norms.post) {
    const bool is_wide = spec_.dtype == DType::f32;
    const Tensor wide = is_wide ? narrow : f32(buffers_.wide, spec_.config.dim);
    ops::clear(wide.as<float>(), wide.elements(), stream());
    norm_backward({.dx = wide,
                   .dy = dresidual(),
                   .x = act(kept, spec_.config.dim),
                   .weight = of == model::Role::o ? norms.attn_post : norms.ffn_post,
                   .scale = spec.residual});
    if (!is_wide)
      ops::convert(narrow.raw(), spec_.dtype, wide.raw(), DType::f32, narrow.elements(), stream());
  } else if (spec.residual != 1) {
    ops::rms_norm(narrow, dresidual(), nullptr, 0, stream(), {.scale = spec.residual});
  } else if (narrow.raw() != buffers_.dstream) {
    ops::convert(narrow.raw(), spec_.dtype, buffers_.dstream, DType::f32, narrow.elements(),
                 stream());
  }
  return through_factors(layer, of, narrow);
}

}  // namespace tandem::train
