#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {

const Family kLlama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
    .members = "Llama 2, 3, 3.1, 3.2",
    .max_context = 2048,
    // A window is ignored, as in transformers.
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      LayerSpec& layer = c.kinds.front();
      read_attention_bias(j, where, layer);
      layer.ffn.bias = io::find_bool(j, "mlp_bias", where).value_or(false);
    }};

}  // namespace tandem::model
