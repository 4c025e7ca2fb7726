#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {
namespace {

/// A multiplier, 1 where the file does not give it.
double multiplier(const io::Json& j, const char* key, const std::string& where) {
  const double value = io::find_double(j, key, where).value_or(1.0);
  if (!(value >= 1e-6 && value <= 1e6))
    throw input_error(where, "key '{}': expected a number from 1e-06 to 1e+06, found {}", key,
                      value);
  return value;
}

}  // namespace

const Family kGranite = {
    .architecture = "GraniteForCausalLM",
    .model_type = "granite",
    .members = "the dense models of Granite 3",
    .max_context = 2048,
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      LayerSpec& layer = c.kinds.front();
      read_attention_bias(j, where, layer);
      layer.ffn.bias = io::find_bool(j, "mlp_bias", where).value_or(false);
      layer.attention.scale = {.times = multiplier(j, "attention_multiplier", where)};
      layer.residual = static_cast<float>(multiplier(j, "residual_multiplier", where));
      c.embedding.scale = static_cast<float>(multiplier(j, "embedding_multiplier", where));
      c.head.scale = static_cast<float>(1 / multiplier(j, "logits_scaling", where));
    }};

}  // namespace tandem::model
