#include "model/spec/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace tandem::model {
namespace {

const char* kind_name(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::none:
      return "default";
    case RopeScalingKind::linear:
      return "linear";
    case RopeScalingKind::llama3:
      return "llama3";
    case RopeScalingKind::yarn:
      return "yarn";
    case RopeScalingKind::longrope:
      return "longrope";
  }
  return "";
}

/// Lists the layers that slide, if max_window_layers does not say it all; else empty.
std::string sliding_layers_text(const ModelConfig& config) {
  std::vector<int> layers;
  for (int layer = 0; layer < config.n_layers; ++layer)
    if (config.layer(layer).attention.window > 0) layers.push_back(layer);
  const bool to_the_end = layers.empty() || layers.front() + std::ssize(layers) == config.n_layers;
  return to_the_end ? "" : fmt::format("sliding in {}", fmt::join(layers, ", "));
}

/// Calls add(key, value) for what few families have.
void add_unusual(const ModelConfig& c, const auto& add) {
  const LayerSpec& first = c.kinds.front();
  std::vector<int> unturned;
  for (int i = 0; i < c.n_layers; ++i)
    if (c.layer(i).attention.rope < 0) unturned.push_back(i);
  if (!unturned.empty()) add("layers without RoPE", fmt::format("{}", fmt::join(unturned, " ")));
  const ops::RopeSpec &rope = c.ropes.front(), &of_sliding = c.ropes.back();
  if (c.ropes.size() > 1)
    add("RoPE of sliding layers",
        fmt::format("theta {}, {}, factor {}", of_sliding.theta, kind_name(of_sliding.scaling.kind),
                    of_sliding.scaling.factor));
  if (rope.dims >= 0) add("dimensions of a head with RoPE", rope.dims);
  if (rope.scaling.kind == RopeScalingKind::longrope) {
    add("short_factor", fmt::format("{}", fmt::join(rope.scaling.short_factors, " ")));
    add("long_factor", fmt::format("{}", fmt::join(rope.scaling.long_factors, " ")));
  }
  if (first.attention.qk_norm == QkNorm::row) add("q_norm and k_norm of rows", true);
  if (!first.norms.pre) add("norms before attention and FFN", false);
  if (first.norms.post) add("norms after attention and FFN", true);
  if (first.norms.unit_offset) add("norms of 1 + weight", true);
  if (first.attention.scale != ops::ScoreScale{})
    add("attention_multiplier", first.attention.scale.f64());
  if (first.residual != 1) add("residual_multiplier", first.residual);
  if (c.embedding.scale != 1) add("embedding_multiplier", c.embedding.scale);
  if (c.head.scale != 1) add("factor of logits", c.head.scale);
}

std::map<std::string, std::string, std::less<>> parse_settings(std::string_view text) {
  std::map<std::string, std::string, std::less<>> values;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (const size_t equals = line.find('='); equals != std::string_view::npos)
      values[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  return values;
}

}  // namespace

std::vector<Setting> settings_of(const ModelConfig& config) {
  // The bindings name every member, so that a new one does not compile until it is added here, or
  // left out because it changes no logit: names, lengths, token ids, and how ranks share the model.
  // The fingerprint of a quantized source covers formats.
  const auto& [name, architecture, dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim,
               vocab_size, vocab_first, vocab_rows, layers_divided, all_heads, all_kv_heads,
               repeats_kv_head, rms_eps, ropes, max_context, stated_context, context_key, trained,
               kinds, kind_of, embedding, head, bos_id, eos_ids, dtype, formats] = config;
  const auto& [theta, scaling, rope_dims] = ropes.front();
  const auto& [kind, factor, low_freq_factor, high_freq_factor, original_context, beta_fast,
               beta_slow, attention_factor, whole_dims, short_factors, long_factors] = scaling;
  const double usual_attention =
      kind == RopeScalingKind::yarn ? ops::yarn_attention_factor(factor) : 1.0;
  std::vector<Setting> all;
  const auto add = [&](const char* key, const auto& value, bool usual = true) {
    all.push_back({key, fmt::format("{}", value), usual});
  };
  add("architectures", architecture);
  add("hidden_size", dim);
  add("num_hidden_layers", n_layers);
  add("num_attention_heads", n_heads);
  add("num_key_value_heads", n_kv_heads);
  add("head_dim", head_dim);
  add("intermediate_size", ffn_dim);
  add("vocab_size", vocab_size);
  add("rms_norm_eps", rms_eps);
  const auto [window, window_from] = config.sliding();
  add("sliding_window", window);
  add("max_window_layers", window_from);
  if (const std::string types = sliding_layers_text(config); !types.empty())
    add("layer_types", types, false);
  add("attention_bias", config.qkv_bias());
  add("attention_bias of o_proj", config.o_bias());
  add("mlp_bias", config.mlp_bias());
  constexpr const char* kGateNames[] = {"silu", "gelu_pytorch_tanh", "gelu", "relu"};
  if (const Gate gate = kinds.front().ffn.gate; gate != Gate::silu)
    add("hidden_act", kGateNames[static_cast<size_t>(gate)], false);
  add("q_norm and k_norm", config.qk_norm() != QkNorm::none);
  add("tie_word_embeddings", head.tied);
  add("rope_theta", theta);
  add("rope_type", kind_name(kind));
  add("factor", factor);
  add("low_freq_factor", low_freq_factor);
  add("high_freq_factor", high_freq_factor);
  add("original_max_position_embeddings", original_context);
  add("beta_fast", beta_fast, beta_fast == RopeScaling{}.beta_fast);
  add("beta_slow", beta_slow, beta_slow == RopeScaling{}.beta_slow);
  add("attention_factor", attention_factor, attention_factor == usual_attention);
  add("truncate", whole_dims, whole_dims == RopeScaling{}.whole_dims);
  add_unusual(config, [&](const char* key, const auto& value) { add(key, value, false); });
  return all;
}

std::string settings_text(const std::vector<Setting>& settings) {
  std::string text;
  for (const Setting& s : settings) text += fmt::format("{}={}\n", s.key, s.value);
  return text;
}

std::vector<std::string> changed_settings(const std::vector<Setting>& settings,
                                          std::string_view recorded) {
  const auto values = parse_settings(recorded);
  std::vector<std::string> changed;
  for (const Setting& s : settings) {
    const auto it = values.find(s.key);
    if (it != values.end() && it->second != s.value)
      changed.push_back(fmt::format("'{}' was {}, now {}", s.key, it->second, s.value));
    if (it == values.end() && !s.usual)
      changed.push_back(fmt::format("'{}' was not recorded, now {}", s.key, s.value));
  }
  return changed;
}

}  // namespace tandem::model
