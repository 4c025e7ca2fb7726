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

/// Sizes of the buffers of a run.
struct Sizes {
  const BackwardSpec& spec;
  int64_t rows, head_rows, dim, q_dim, qkv_dim, ffn_dim, vocab;

  explicit Sizes(const BackwardSpec& s)
      : spec(s),
        rows(s.max_rows),
        head_rows(std::min(s.head_rows, s.max_rows)),
        dim(s.config.dim),
        q_dim(s.config.q_dim()),
        qkv_dim(q_dim + 2 * int64_t{s.config.kv_dim()}),
        ffn_dim(s.config.ffn_dim),
        vocab(s.config.vocab_size) {}

  size_t act(int64_t n) const { return static_cast<size_t>(n) * dtype_bytes(spec.dtype); }
  static size_t f32(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }
  bool narrow() const { return spec.dtype != DType::f32; }
};

/// Columns that are copied before a product, at most.
int64_t most_listed(const TrainedSet& set, int64_t ffn_dim) {
  int64_t most = 0;
  for (const TrainedLayer& l : set.layers) {
    for (const TrainedMatrix* m : {&l.qkv, &l.wo, &l.gate_up, &l.w_down})
      if (m->part == Part::rows || m->part == Part::columns)
        most = std::max(most, static_cast<int64_t>(m->index.size()));
    if (l.w_down.part == Part::all) most = std::max(most, ffn_dim);
  }
  return most;
}

/// Calls buffer(name, bytes) for the activations that a layer keeps, or those that it computes
/// again, and notes their places.
template <class Buffer>
void each_activation(const Sizes& s, const LayerFrontier& f, bool kept, const std::string& prefix,
                     model::LayerActivations& to, const Buffer& buffer) {
  using Again = LayerFrontier::Again;
  const auto add = [&]<class Place>(bool read, bool again, const char* name, size_t bytes,
                                    Place*& place) {
    if (read && again != kept) place = static_cast<Place*>(buffer(prefix + name, bytes));
  };
  const bool layer = f.again == Again::layer;
  add(f.reads_input, false, "input", s.act(s.rows * s.dim), to.residual_in);
  add(f.reads_qkv, layer, "qkv", s.act(s.rows * s.qkv_dim), to.qkv);
  add(f.attention, layer, "q", s.act(s.rows * s.q_dim), to.q);
  add(f.attention, layer, "lse", Sizes::f32(s.rows * s.spec.config.n_heads), to.lse);
  add(f.reads_attended, layer, "attended", s.act(s.rows * s.q_dim), to.attended);
  add(f.reads_middle, layer, "middle", s.act(s.rows * s.dim), to.residual_mid);
  add(f.reads_gate_up(), f.again != Again::none, "gate_up", s.act(s.rows * 2 * s.ffn_dim),
      to.gate_up);
}

/// Of all layers what they keep, and the places that they share for those computed again.
template <class Buffer>
void each_activation(const Sizes& s, const Frontier& frontier,
                     std::vector<model::LayerActivations>& kept, model::LayerActivations& again,
                     const Buffer& buffer) {
  LayerFrontier most;  // of the layer that computes most again: the last
  for (size_t i = 0; i < frontier.layers.size(); ++i) {
    const LayerFrontier& f = frontier.layers[i];
    each_activation(s, f, true, "activations/layers." + std::to_string(i) + ".", kept[i], buffer);
    if (f.again >= most.again) most = f;
  }
  each_activation(s, most, false, "activations/again.", again, buffer);
}

size_t workspace_bytes(const BackwardSpec& spec, const TrainedSet& set) {
  const Sizes s(spec);
  const model::ModelConfig& c = spec.config;
  size_t bytes =
      ops::attention_backward_workspace_bytes(spec.max_rows, c.n_heads, c.n_kv_heads, c.head_dim);
  const auto add = [&](int64_t out, int64_t in, int64_t rows) {
    bytes = std::max({bytes,
                      ops::input_gradient_workspace_bytes(
                          {.name = {}, .out = out, .in = in, .dtype = spec.dtype}, rows),
                      ops::weight_gradient_workspace_bytes(out, in, spec.dtype, rows)});
  };
  add(s.qkv_dim, s.dim, s.rows);
  add(s.dim, s.q_dim, s.rows);
  add(2 * s.ffn_dim, s.dim, s.rows);
  add(s.dim, s.ffn_dim, s.rows);
  add(s.vocab, s.dim, s.head_rows);
  return set.size == 0 ? 0 : bytes;
}

/// Calls buffer(name, bytes) for the gradients' buffers, by their names.
struct Shared {
  const char* name;
  size_t bytes;
};
std::vector<Shared> shared_buffers(const BackwardSpec& spec, const TrainedSet& set) {
  const Sizes s(spec);
  const int64_t rows = s.rows;
  const bool narrow = s.narrow();
  return {{"gradients/stream", Sizes::f32(rows * s.dim)},
          {"gradients/stream narrow", narrow ? s.act(rows * s.dim) : 0},
          {"gradients/wide", narrow ? Sizes::f32(rows * s.dim) : 0},
          {"gradients/normed", s.act(rows * s.dim)},
          {"gradients/dnormed", s.act(rows * s.dim)},
          {"gradients/dwide", s.act(rows * std::max(s.ffn_dim, s.q_dim))},
          {"gradients/dqkv", s.act(rows * s.qkv_dim)},
          {"gradients/listed", s.act(rows * most_listed(set, s.ffn_dim))},
          {"gradients/inverse", Sizes::f32(rows)},
          {"gradients/dnorms", Sizes::f32(rows * 2 * spec.config.head_dim)},
          {"gradients/logits", Sizes::f32(s.head_rows * s.vocab)},
          {"gradients/dlogits", narrow ? s.act(s.head_rows * s.vocab) : 0},
          {"gradients/losses", Sizes::f32(s.head_rows)},
          {"gradients/workspace", workspace_bytes(spec, set)}};
}

}  // namespace

void Backward::plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan) {
  std::vector<model::LayerActivations> kept(static_cast<size_t>(spec.config.n_layers));
  model::LayerActivations again;
  each_activation(Sizes(spec), frontier_of(set, spec.config, spec.recompute), kept, again,
                  [&](const std::string& name, size_t bytes) -> void* {
                    plan.add(name, bytes);
                    return nullptr;
                  });
  for (const Shared& b : shared_buffers(spec, set)) plan.add(b.name, b.bytes);
}

Backward::Backward(const BackwardSpec& spec, const TrainedSet& set, model::Llama& model,
                   kv::Cache& cache, Arena& arena)
    : spec_(spec),
      set_(set),
      frontier_(frontier_of(set, spec.config, spec.recompute)),
      model_(model),
      cache_(cache),
      kept_(static_cast<size_t>(spec.config.n_layers)) {
  const auto take = [&](const std::string& name) -> void* {
    return arena.plan().find(name) == nullptr ? nullptr : arena.take(name);
  };
  each_activation(Sizes(spec_), frontier_, kept_, again_,
                  [&](const std::string& name, size_t) { return take(name); });
  const auto floats = [&](const char* name) { return static_cast<float*>(take(name)); };
  const bool narrow = Sizes(spec_).narrow();
  dstream_ = floats("gradients/stream");
  dstream_act_ = narrow ? take("gradients/stream narrow") : dstream_;
  wide_ = floats("gradients/wide");
  normed_ = take("gradients/normed");
  dnormed_ = take("gradients/dnormed");
  dwide_ = take("gradients/dwide");
  dqkv_ = take("gradients/dqkv");
  listed_ = take("gradients/listed");
  inverse_ = floats("gradients/inverse");
  dnorms_ = floats("gradients/dnorms");
  logits_ = floats("gradients/logits");
  dlogits_ = narrow ? take("gradients/dlogits") : logits_;
  losses_ = floats("gradients/losses");
  if (const PlanItem* w = arena.plan().find("gradients/workspace"))
    workspace_ = {static_cast<std::byte*>(take(w->name)), w->bytes};
}

double Backward::run(const MicroBatch& batch, float scale, std::span<float> gradient) {
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
  model_.forward(batch.tokens, step, cache_,
                 backward ? std::span<const model::LayerActivations>(kept_)
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
  if (backward) std::fill_n(dstream_, n_rows_ * spec_.config.dim, 0.0f);
  const model::Weights& w = model_.weights();
  const int64_t most = Sizes(spec_).head_rows, vocab = spec_.config.vocab_size;
  const auto total = static_cast<int64_t>(supervised.rows.size());
  double loss = 0;
  for (int64_t begin = 0; begin < total; begin += most) {
    const int64_t n = std::min(most, total - begin);
    const int32_t* rows = supervised.rows.data() + begin;
    const Tensor logits(logits_, DType::f32, {n, vocab});
    const Tensor dlogits(dlogits_, spec_.dtype, {n, vocab});
    model_.logits(logits, rows);
    ops::cross_entropy({.logits = logits,
                        .dlogits = backward ? dlogits : Tensor{},
                        .loss = losses_,
                        .targets = supervised.targets.data() + begin,
                        .scale = scale});
    for (int64_t i = 0; i < n; ++i) loss += double{losses_[i]};
    if (!backward) continue;
    weight_gradient(set_.lm_head, dlogits, model_.head_in(n));
    const Tensor dnormed(dnormed_, spec_.dtype, {n, spec_.config.dim});
    ops::linear_input_gradient(dnormed, dlogits, w.lm_head, ops::Accumulate::no, workspace_);
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
  model::LayerActivations kept = kept_[static_cast<size_t>(index)];
  if (f.again == Again::none) return kept;
  kept.gate_up = again_.gate_up;
  if (f.again == Again::layer) {
    if (f.reads_qkv) kept.qkv = again_.qkv;
    kept.q = again_.q;
    kept.lse = again_.lse;
    kept.attended = again_.attended;
    kept.residual_mid = again_.residual_mid;
  }
  model_.run_again(index, step, cache_, kept, f.again == Again::gate_up);
  return kept;
}

void Backward::ffn(int index, const model::LayerActivations& kept) {
  const auto i = static_cast<size_t>(index);
  const LayerFrontier& f = frontier_.layers[i];
  const TrainedLayer& t = set_.layers[i];
  const model::LayerWeights& w = model_.weights().layers[i];
  const Tensor dy = narrow_stream();
  const Tensor gate_up = act(kept.gate_up, 2 * int64_t{spec_.config.ffn_dim});
  Tensor da, columns;
  if (f.gate_up) {
    da = act(dwide_, spec_.config.ffn_dim);
    ops::linear_input_gradient(da, dy, w.w_down, ops::Accumulate::no, workspace_);
  }
  const bool listed = t.w_down.part == Part::columns;
  if (t.w_down.trained())
    columns = act(listed_, listed ? t.w_down.cols : int64_t{spec_.config.ffn_dim});
  ops::silu_mul_backward(gate_up, da, columns, listed ? t.w_down.index.data() : nullptr);
  weight_gradient(t.w_down, dy, columns);
  if (!f.gate_up) return;
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
  const Tensor dy = narrow_stream();
  Tensor attended = act(kept.attended, c.q_dim());
  if (t.wo.part == Part::columns) {
    const Tensor all = attended;
    attended = act(listed_, t.wo.cols);
    ops::gather_columns(attended, all, t.wo.index.data());
  }
  weight_gradient(t.wo, dy, attended);
  if (!f.attention) return;

  const Tensor dattended = act(dwide_, c.q_dim());
  ops::linear_input_gradient(dattended, dy, w.wo, ops::Accumulate::no, workspace_);
  const auto heads = [&](void* at) {
    return Tensor(at, spec_.dtype, {n_rows_, c.n_heads, c.head_dim});
  };
  const int64_t qkv_dim = c.q_dim() + 2 * int64_t{c.kv_dim()};
  const Tensor dqkv = act(dqkv_, qkv_dim);
  ops::attention_backward({.dqkv = dqkv,
                           .dout = heads(dwide_),
                           .out = heads(kept.attended),
                           .lse = kept.lse,
                           .q = heads(kept.q),
                           .k = cache_.k(index),
                           .v = cache_.v(index),
                           .step = step.arrays,
                           .window = c.window(index),
                           .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim))},
                          workspace_);
  const bool head_norms = set_.norms && c.qk_norm;
  ops::rope_backward({.dqkv = dqkv,
                      .rope = model_.rope(),
                      .pos = step.arrays.pos,
                      .n_heads = c.n_heads,
                      .n_kv_heads = c.n_kv_heads,
                      .qkv = c.qk_norm ? act(kept.qkv, qkv_dim) : Tensor{},
                      .norms = {w.norms.q, w.norms.k, static_cast<float>(c.rms_eps)},
                      .dnorms = head_norms ? dnorms_ : nullptr});
  // The norm of k follows that of q.
  if (head_norms)
    ops::bias_gradient(norm_gradient(w.norms.q),
                       {dnorms_, DType::f32, {n_rows_, 2 * int64_t{c.head_dim}}});
  weight_gradient(t.qkv, dqkv,
                  t.qkv.trained() ? normed_again(w.norms.attn, kept.residual_in) : Tensor{});
  if (f.input) through_normed_linear(dqkv, w.qkv, w.norms.attn, kept.residual_in);
}

void Backward::embedding(std::span<const int32_t> tokens) {
  ops::embedding_gradient(flat(set_.embedding.offset, set_.embedding.rows, set_.embedding.cols),
                          stream(), tokens);
}

void Backward::weight_gradient(const TrainedMatrix& m, const Tensor& dy, const Tensor& x) {
  if (m.bias) ops::bias_gradient(gradient_.data() + m.bias_offset, dy);
  if (!m.trained()) return;
  Tensor listed = dy;
  if (m.part == Part::rows) {
    listed = {listed_, dy.dtype(), {dy.rows(), m.rows}};
    ops::gather_columns(listed, dy, m.index.data());
  }
  ops::linear_weight_gradient(flat(m.offset, m.rows, m.cols), listed, x, workspace_);
}

void Backward::through_normed_linear(const Tensor& dy, const ops::PackedWeights& w,
                                     const float* norm, const void* kept) {
  const Tensor dnormed = act(dnormed_, spec_.config.dim);
  ops::linear_input_gradient(dnormed, dy, w, ops::Accumulate::no, workspace_);
  norm_backward({.dx = stream(), .dy = dnormed, .x = widened(kept), .weight = norm});
}

void Backward::norm_backward(ops::RmsNormBackwardArgs args) {
  args.eps = static_cast<float>(spec_.config.rms_eps);
  args.inverse = set_.norms ? inverse_ : nullptr;
  ops::rms_norm_backward(args);
  if (set_.norms) ops::norm_weight_gradient(norm_gradient(args.weight), args);
}

Tensor Backward::widened(const void* kept) {
  const Tensor narrow = act(const_cast<void*>(kept), spec_.config.dim);
  if (spec_.dtype == DType::f32) return narrow;
  ops::convert(wide_, DType::f32, narrow.raw(), spec_.dtype, narrow.elements());
  return {wide_, DType::f32, {n_rows_, spec_.config.dim}};
}

Tensor Backward::normed_again(const float* norm, const void* kept) {
  const Tensor normed = act(normed_, spec_.config.dim);
  ops::rms_norm(normed, widened(kept), norm, static_cast<float>(spec_.config.rms_eps));
  return normed;
}

Tensor Backward::narrow_stream() {
  const Tensor narrow = act(dstream_act_, spec_.config.dim);
  if (spec_.dtype != DType::f32)
    ops::convert(narrow.raw(), spec_.dtype, dstream_, DType::f32, narrow.elements());
  return narrow;
}

}  // namespace tandem::train
