#include "model/weight_table.h"

#include <fmt/format.h>

#include <array>

namespace tandem::model {
namespace {

struct WeightInfo {
  Weight weight;
  std::string_view checkpoint;  // Hugging Face's, after "model.layers.N." if per_layer
  bool per_layer;
};

// In the order of the enumeration, so that the value is the index.
constexpr std::array kWeights = {
    WeightInfo{Weight::tok_emb, "model.embed_tokens.weight", false},
    WeightInfo{Weight::attn_norm, "input_layernorm.weight", true},
    WeightInfo{Weight::wq, "self_attn.q_proj.weight", true},
    WeightInfo{Weight::wk, "self_attn.k_proj.weight", true},
    WeightInfo{Weight::wv, "self_attn.v_proj.weight", true},
    WeightInfo{Weight::wo, "self_attn.o_proj.weight", true},
    WeightInfo{Weight::bq, "self_attn.q_proj.bias", true},
    WeightInfo{Weight::bk, "self_attn.k_proj.bias", true},
    WeightInfo{Weight::bv, "self_attn.v_proj.bias", true},
    WeightInfo{Weight::bo, "self_attn.o_proj.bias", true},
    WeightInfo{Weight::ffn_norm, "post_attention_layernorm.weight", true},
    WeightInfo{Weight::w_gate, "mlp.gate_proj.weight", true},
    WeightInfo{Weight::w_up, "mlp.up_proj.weight", true},
    WeightInfo{Weight::w_down, "mlp.down_proj.weight", true},
    WeightInfo{Weight::b_gate, "mlp.gate_proj.bias", true},
    WeightInfo{Weight::b_up, "mlp.up_proj.bias", true},
    WeightInfo{Weight::b_down, "mlp.down_proj.bias", true},
    WeightInfo{Weight::out_norm, "model.norm.weight", false},
    WeightInfo{Weight::lm_head, "lm_head.weight", false},
    WeightInfo{Weight::q_norm, "self_attn.q_norm.weight", true},
    WeightInfo{Weight::k_norm, "self_attn.k_norm.weight", true},
};

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kWeights.size(); ++i)
    if (static_cast<size_t>(kWeights[i].weight) != i) return false;
  return true;
}
static_assert(in_enum_order());

const WeightInfo& info(Weight weight) { return kWeights[static_cast<size_t>(weight)]; }

std::vector<Weight> select(const ModelConfig& config, bool per_layer) {
  std::vector<Weight> selected;
  for (const WeightInfo& w : kWeights)
    if (w.per_layer == per_layer && has_weight(w.weight, config)) selected.push_back(w.weight);
  return selected;
}

}  // namespace

bool is_per_layer(Weight weight) { return info(weight).per_layer; }

std::string checkpoint_name(Weight weight, int layer) {
  if (!is_per_layer(weight)) return std::string(info(weight).checkpoint);
  return fmt::format("model.layers.{}.{}", layer, info(weight).checkpoint);
}

io::Shape weight_shape(Weight weight, const ModelConfig& c) {
  switch (weight) {
    case Weight::tok_emb:
    case Weight::lm_head:
      return {c.head_rows(), c.dim};
    case Weight::attn_norm:
    case Weight::ffn_norm:
    case Weight::out_norm:
    case Weight::bo:
    case Weight::b_down:
      return {c.dim};
    case Weight::wq:
      return {c.q_dim(), c.dim};
    case Weight::wk:
    case Weight::wv:
      return {c.kv_dim(), c.dim};
    case Weight::wo:
      return {c.dim, c.q_dim()};
    case Weight::bq:
      return {c.q_dim()};
    case Weight::bk:
    case Weight::bv:
      return {c.kv_dim()};
    case Weight::w_gate:
    case Weight::w_up:
      return {c.ffn_dim, c.dim};
    case Weight::w_down:
      return {c.dim, c.ffn_dim};
    case Weight::b_gate:
    case Weight::b_up:
      return {c.ffn_dim};
    case Weight::q_norm:
    case Weight::k_norm:
      return {c.head_dim};
  }
  return {};
}

bool has_weight(Weight weight, const ModelConfig& config) {
  switch (weight) {
    case Weight::bq:
    case Weight::bk:
    case Weight::bv:
      return config.qkv_bias();
    case Weight::bo:
      return config.o_bias();
    case Weight::b_gate:
    case Weight::b_up:
    case Weight::b_down:
      return config.mlp_bias();
    case Weight::lm_head:
      return !config.head.tied;
    case Weight::q_norm:
    case Weight::k_norm:
      return config.qk_norm();
    default:
      return true;
  }
}

std::vector<Weight> global_weights(const ModelConfig& config) { return select(config, false); }

std::vector<Weight> layer_weights(const ModelConfig& config) { return select(config, true); }

int64_t n_params(const ModelConfig& config) {
  const auto count = [&](const std::vector<Weight>& weights) {
    int64_t sum = 0;
    for (const Weight weight : weights) {
      int64_t n = 1;
      for (const int64_t extent : weight_shape(weight, config)) n *= extent;
      sum += n;
    }
    return sum;
  };
  return count(global_weights(config)) + config.n_layers * count(layer_weights(config));
}

}  // namespace tandem::model
