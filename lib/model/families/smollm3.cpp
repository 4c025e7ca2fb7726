#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {
namespace {

/// Finds the layers without RoPE: all i with no_rope_layers[i] = 0, or else every n-th.
/// returns  [n_layers] 1 = the layer has none
std::vector<uint8_t> unturned_layers(const io::Json& j, const std::string& where, int n_layers) {
  std::vector<uint8_t> unturned;
  if (const io::Json* list = io::find_array(j, "no_rope_layers", where)) {
    if (list->size() != static_cast<size_t>(n_layers))
      throw pattern_error("no_rope_layers", n_layers, list->size(), where);
    for (const io::Json& item : *list)
      unturned.push_back(io::as_int(item, "key 'no_rope_layers'", where, 0, 1) == 0);
    return unturned;
  }
  const int64_t every = io::find_int(j, "no_rope_layer_interval", where, 1, kMaxLayers).value_or(4);
  for (int i = 0; i < n_layers; ++i) unturned.push_back((i + 1) % every == 0);
  return unturned;
}

}  // namespace

const Family kSmolLm3 = {
    .architecture = "SmolLM3ForCausalLM",
    .model_type = "smollm3",
    .members = "SmolLM3",
    .max_context = 32768,
    .n_kv_heads = 4,
    .theta = 2e6,
    .tied = true,
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      LayerSpec& layer = c.kinds.front();
      read_attention_bias(j, where, layer);
      layer.ffn.bias = io::find_bool(j, "mlp_bias", where).value_or(false);
      const std::vector<uint8_t> unturned = unturned_layers(j, where, c.n_layers);
      std::vector<LayerSpec> layers(unturned.size(), layer);
      for (size_t i = 0; i < layers.size(); ++i)
        if (unturned[i] != 0) layers[i].attention.rope = -1;
      c.set_layers(layers);
      if (io::find_bool(j, "use_sliding_window", where).value_or(false) &&
          j.contains("sliding_window"))
        read_window(j, where, unturned, c);
    }};

}  // namespace tandem::model
