#include "train/backward/backward_buffers.h"

#include <algorithm>

#include "ops/backward.h"
#include "ops/linear_gradient.h"

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
  int64_t dnorms() const {
    return spec.config.qk_norm() == model::QkNorm::row ? q_dim + spec.config.kv_dim()
                                                       : 2 * int64_t{spec.config.head_dim};
  }
};

/// Columns that are copied before a product, at most.
int64_t most_listed(const TrainedSet& set, int64_t ffn_dim, bool keeps_ffn) {
  int64_t most = 0;
  for (const auto& l : set.layers) {
    for (const TrainedMatrix& m : l)
      if (m.part == Part::rows || m.part == Part::columns)
        most = std::max(most, static_cast<int64_t>(m.index.size()));
    // Its input is computed again for the gradient, if it is not kept.
    if (keeps_ffn) continue;
    const Part down = l[Role::down].part;
    if (down == Part::all || down == Part::elements || down == Part::low_rank)
      most = std::max(most, ffn_dim);
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
  add(f.keeps_normed_in, false, "normed_in", s.act(s.rows * s.dim), to.normed_in);
  add(f.keeps_normed_mid, false, "normed_mid", s.act(s.rows * s.dim), to.normed_mid);
  add(f.keeps_ffn, false, "ffn", s.act(s.rows * s.ffn_dim), to.ffn);
  add(f.reads_qkv, layer, "qkv", s.act(s.rows * s.qkv_dim), to.qkv);
  add(f.attention, layer, "q", s.act(s.rows * s.q_dim), to.q);
  add(f.attention, layer, "lse", Sizes::f32(s.rows * s.spec.config.n_heads), to.lse);
  add(f.reads_attended, layer, "attended", s.act(s.rows * s.q_dim), to.attended);
  add(f.reads_o_out, layer, "o_out", s.act(s.rows * s.dim), to.o_out);
  add(f.reads_down_out, false, "down_out", s.act(s.rows * s.dim), to.down_out);
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

/// Elements of the largest matrix of which single ones are trained.
int64_t most_dense(const Sizes& s, const TrainedSet& set) {
  int64_t most = 0;
  for (const auto& l : set.layers)
    for (const Role role : model::kLayerStacks) {
      const io::Shape shape = model::shape_of(role, s.spec.config);
      if (l[role].part == Part::elements) most = std::max(most, shape[0] * shape[1]);
    }
  return most;
}

size_t workspace_bytes(const BackwardSpec& spec, const TrainedSet& set) {
  const Sizes s(spec);
  const model::ModelConfig& c = spec.config;
  size_t bytes = ops::attention_backward_workspace_bytes(spec.max_rows, c.n_heads, c.n_kv_heads,
                                                         c.head_dim, spec.dtype, spec.device);
  const auto add = [&](int64_t out, int64_t in, int64_t rows) {
    bytes = std::max(
        {bytes,
         ops::input_gradient_workspace_bytes(
             {.name = {}, .out = out, .in = in, .stored = spec.dtype, .device = spec.device}, rows),
         ops::weight_gradient_workspace_bytes(out, in, spec.dtype, rows, spec.device)});
  };
  for (const Role role : model::kLayerStacks) {
    const io::Shape shape = model::shape_of(role, c);
    add(shape[0], shape[1], s.rows);
  }
  add(s.vocab, s.dim, s.head_rows);
  if (c.formats)  // its products have input gradients
    bytes = std::max(bytes, model::Weights::workspace_bytes(
                                c, spec.dtype, s.rows, s.head_rows,
                                {.device = spec.device, .trainable = set.trainable()}));
  return set.size == 0 ? 0 : bytes;
}

/// A buffer that layers use in turn.
struct Shared {
  const char* name;
  size_t bytes;
};
std::vector<Shared> shared_buffers(const BackwardSpec& spec, const TrainedSet& set) {
  const Sizes s(spec);
  const int64_t rows = s.rows;
  const bool keeps_ffn = spec.recompute == Recomputation::none;
  const bool narrow = s.narrow(), on_gpu = spec.device.kind == Device::Kind::cuda;
  const size_t ints = static_cast<size_t>(rows) * sizeof(int32_t);
  const size_t token_rows =
      ops::TokenRows::most_numbers(static_cast<size_t>(rows)) * sizeof(int32_t);
  return {
      {"gradients/stream", Sizes::f32(rows * s.dim)},
      {"gradients/stream narrow", narrow || s.spec.config.has_branch() ? s.act(rows * s.dim) : 0},
      {"gradients/wide", narrow ? Sizes::f32(rows * s.dim) : 0},
      {"gradients/normed", s.act(rows * s.dim)},
      {"gradients/dnormed", s.act(rows * s.dim)},
      {"gradients/dwide", s.act(rows * std::max(s.ffn_dim, s.q_dim))},
      {"gradients/dqkv", s.act(rows * s.qkv_dim)},
      {"gradients/listed", s.act(rows * most_listed(set, s.ffn_dim, keeps_ffn))},
      {"gradients/inverse", Sizes::f32(rows)},
      {"gradients/dnorms", Sizes::f32(rows * s.dnorms())},
      {"gradients/logits", Sizes::f32(s.head_rows * s.vocab)},
      {"gradients/dlogits", narrow ? s.act(s.head_rows * s.vocab) : 0},
      {"gradients/losses", Sizes::f32(rows)},
      {"gradients/supervised rows", on_gpu ? ints : 0},
      {"gradients/targets", on_gpu ? ints : 0},
      {"gradients/token rows", on_gpu && set.embedding.trained() ? token_rows : 0},
      {"gradients/dense", Sizes::f32(most_dense(s, set))},
      {"gradients/workspace", workspace_bytes(spec, set)}};
}

}  // namespace

void BackwardBuffers::plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan) {
  std::vector<model::LayerActivations> kept(static_cast<size_t>(spec.config.n_layers));
  model::LayerActivations again;
  each_activation(Sizes(spec), frontier_of(set, spec.config, spec.recompute), kept, again,
                  [&](const std::string& name, size_t bytes) -> void* {
                    plan.add(name, bytes, spec.device);
                    return nullptr;
                  });
  for (const Shared& b : shared_buffers(spec, set)) plan.add(b.name, b.bytes, spec.device);
  PlacedIndices::plan(set, spec.device, plan);
}

BackwardBuffers::BackwardBuffers(const BackwardSpec& spec, const Frontier& frontier, Arena& arena)
    : kept(static_cast<size_t>(spec.config.n_layers)) {
  const auto take = [&](const std::string& name) -> void* {
    return arena.plan().find(name) == nullptr ? nullptr : arena.take(name);
  };
  each_activation(Sizes(spec), frontier, kept, again,
                  [&](const std::string& name, size_t) { return take(name); });
  const auto floats = [&](const char* name) { return static_cast<float*>(take(name)); };
  const bool narrow = Sizes(spec).narrow();
  dstream = floats("gradients/stream");
  dstream_act = take("gradients/stream narrow");
  if (dstream_act == nullptr) dstream_act = dstream;
  wide = floats("gradients/wide");
  normed = take("gradients/normed");
  dnormed = take("gradients/dnormed");
  dwide = take("gradients/dwide");
  dqkv = take("gradients/dqkv");
  listed = take("gradients/listed");
  inverse = floats("gradients/inverse");
  dnorms = floats("gradients/dnorms");
  logits = floats("gradients/logits");
  dlogits = narrow ? take("gradients/dlogits") : logits;
  losses = floats("gradients/losses");
  dense = floats("gradients/dense");
  const auto ints = [&](const char* name) { return static_cast<int32_t*>(take(name)); };
  rows = ints("gradients/supervised rows");
  targets = ints("gradients/targets");
  token_rows = ints("gradients/token rows");
  if (const PlanItem* w = arena.plan().find("gradients/workspace"))
    workspace = {static_cast<std::byte*>(take(w->name)), w->bytes};
}

}  // namespace tandem::train
