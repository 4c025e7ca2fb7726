#include "model/weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "model/weight_table.h"

namespace tandem::model {
namespace {

using ops::PackedWeights;

/// One packed product: the checkpoint's matrices that it stacks, and their biases.
struct Product {
  PackedWeights::Spec spec;
  struct Part {
    Weight weight;
    Weight bias;
    int64_t rows;
  };
  std::vector<Part> parts;
  int layer = 0;
};

enum class ProductKind : uint8_t { qkv, wo, gate_up, w_down, lm_head };

Product product(const ModelConfig& c, DType dtype, ProductKind kind, int layer) {
  Product p;
  p.layer = layer;
  const std::string prefix = "weights/layers." + std::to_string(layer) + ".";
  switch (kind) {
    case ProductKind::qkv:
      p.spec = {prefix + "qkv", c.q_dim() + 2 * int64_t{c.kv_dim()}, c.dim, c.qkv_bias, dtype};
      p.parts = {{Weight::wq, Weight::bq, c.q_dim()},
                 {Weight::wk, Weight::bk, c.kv_dim()},
                 {Weight::wv, Weight::bv, c.kv_dim()}};
      break;
    case ProductKind::wo:
      p.spec = {prefix + "wo", c.dim, c.q_dim(), c.o_bias, dtype};
      p.parts = {{Weight::wo, Weight::bo, c.dim}};
      break;
    case ProductKind::gate_up:
      p.spec = {prefix + "gate_up", 2 * int64_t{c.ffn_dim}, c.dim, c.mlp_bias, dtype};
      p.parts = {{Weight::w_gate, Weight::b_gate, c.ffn_dim}, {Weight::w_up, Weight::b_up, c.ffn_dim}};
      break;
    case ProductKind::w_down:
      p.spec = {prefix + "w_down", c.dim, c.ffn_dim, c.mlp_bias, dtype};
      p.parts = {{Weight::w_down, Weight::b_down, c.dim}};
      break;
    case ProductKind::lm_head: {
      const Weight head = c.tied_embeddings ? Weight::tok_emb : Weight::lm_head;
      p.spec = {"weights/lm_head", c.vocab_size, c.dim, false, dtype};
      p.parts = {{head, head, c.vocab_size}};
      break;
    }
  }
  return p;
}

constexpr std::array kLayerProducts = {ProductKind::qkv, ProductKind::wo, ProductKind::gate_up,
                                       ProductKind::w_down};

PackedWeights& slot_of(LayerWeights& w, ProductKind kind) {
  switch (kind) {
    case ProductKind::qkv: return w.qkv;
    case ProductKind::wo: return w.wo;
    case ProductKind::gate_up: return w.gate_up;
    default: return w.w_down;
  }
}

/// Rows [begin, end) of the stacked matrix, part by part.
void stacked_rows(const Product& p, const WeightSource& source, int64_t begin, int64_t end,
                  char* out) {
  const size_t row_bytes = static_cast<size_t>(p.spec.in) * dtype_bytes(p.spec.dtype);
  int64_t first = 0;
  for (const Product::Part& part : p.parts) {
    const int64_t lo = std::max(begin, first), hi = std::min(end, first + part.rows);
    if (lo < hi)
      source.rows(part.weight, p.layer, lo - first, hi - first, p.spec.dtype,
                  out + static_cast<size_t>(lo - begin) * row_bytes);
    first += part.rows;
  }
}

/// Polls for an interruption and tells how far loading has come.
class LoadWatch {
 public:
  LoadWatch(const LoadEvents& events, int64_t elements) : events_(events), elements_(elements) {}

  void add(int64_t elements) {
    poll(events_.interrupted);
    done_ += elements;
    if (events_.progress)
      events_.progress(static_cast<double>(done_) / static_cast<double>(elements_));
  }

 private:
  const LoadEvents& events_;
  int64_t elements_, done_ = 0;
};

PackedWeights load_product(const Product& p, const WeightSource& source, Arena& arena,
                           void* staging, LoadWatch& watch) {
  std::vector<float> bias;
  if (p.spec.bias)
    for (const Product::Part& part : p.parts) {
      const std::vector<float> values = source.vector(part.bias, p.layer);
      bias.insert(bias.end(), values.begin(), values.end());
    }
  PackedWeights packed;
  packed.load(p.spec, arena,
              [&](int64_t begin, int64_t end, void* out) {
                watch.add((end - begin) * p.spec.in);
                stacked_rows(p, source, begin, end, static_cast<char*>(out));
              },
              bias, staging);
  source.done();
  return packed;
}

int64_t matrix_elements(const ModelConfig& c, DType dtype) {
  int64_t layer = 0;
  for (const ProductKind kind : kLayerProducts) {
    const PackedWeights::Spec spec = product(c, dtype, kind, 0).spec;
    layer += spec.out * spec.in;
  }
  return c.n_layers * layer + int64_t{c.vocab_size} * c.dim;
}

size_t norm_bytes(const ModelConfig& c) {
  return (2 * static_cast<size_t>(c.n_layers) + 1) * static_cast<size_t>(c.dim) * sizeof(float);
}

}  // namespace

void Weights::plan(const ModelConfig& config, DType dtype, const WeightSource& source,
                   MemoryPlan& plan) {
  size_t staging = 0, mapped = 0;
  const auto add = [&](const Product& p) {
    PackedWeights::plan(p.spec, plan);
    staging = std::max(staging, PackedWeights::staging_bytes(p.spec));
    size_t parts = 0;
    for (const Product::Part& part : p.parts) parts += source.mapped_bytes(part.weight);
    mapped = std::max(mapped, parts);
  };
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const ProductKind kind : kLayerProducts) add(product(config, dtype, kind, layer));
  add(product(config, dtype, ProductKind::lm_head, 0));
  plan.add("weights/norms", norm_bytes(config));
  plan.add("load/staging", staging, {}, Lifetime::load);
  plan.add("load/mapped source", mapped, {}, Lifetime::load);
}

Weights Weights::load(const ModelConfig& config, DType dtype, const WeightSource& source,
                      Arena& arena, const LoadEvents& events) {
  Weights w;
  float* norms = static_cast<float*>(arena.take("weights/norms"));
  const auto take_norm = [&](Weight weight, int layer) {
    const std::vector<float> values = source.vector(weight, layer);
    TANDEM_CHECK(values.size() == static_cast<size_t>(config.dim), "{} norm weights", values.size());
    std::memcpy(norms, values.data(), values.size() * sizeof(float));
    return std::exchange(norms, norms + values.size());
  };
  void* staging = arena.take("load/staging");
  LoadWatch watch(events, matrix_elements(config, dtype));
  for (int layer = 0; layer < config.n_layers; ++layer) {
    LayerWeights& l = w.layers.emplace_back();
    l.attn_norm = take_norm(Weight::attn_norm, layer);
    l.ffn_norm = take_norm(Weight::ffn_norm, layer);
    for (const ProductKind kind : kLayerProducts)
      slot_of(l, kind) = load_product(product(config, dtype, kind, layer), source, arena, staging, watch);
  }
  w.out_norm = take_norm(Weight::out_norm, 0);
  w.lm_head =
      load_product(product(config, dtype, ProductKind::lm_head, 0), source, arena, staging, watch);
  arena.give_back("load/staging");
  return w;
}

size_t Weights::workspace_bytes(const ModelConfig& config, DType dtype, int64_t max_rows,
                                int64_t head_rows) {
  size_t bytes = PackedWeights::workspace_bytes(
      product(config, dtype, ProductKind::lm_head, 0).spec, head_rows);
  for (const ProductKind kind : kLayerProducts)
    bytes = std::max(bytes, PackedWeights::workspace_bytes(product(config, dtype, kind, 0).spec,
                                                           max_rows));
  return bytes;
}

size_t Weights::bytes() const {
  size_t sum = lm_head.bytes();
  for (const LayerWeights& l : layers)
    sum += l.qkv.bytes() + l.wo.bytes() + l.gate_up.bytes() + l.w_down.bytes();
  return sum;
}

}  // namespace tandem::model
