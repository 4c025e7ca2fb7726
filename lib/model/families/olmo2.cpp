#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {

const Family kOlmo2 = {
    .architecture = "Olmo2ForCausalLM",
    .model_type = "olmo2",
    .members = "OLMo 2",
    .max_context = 2048,
    .rms_eps = 1e-5,
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      LayerSpec& layer = c.kinds.front();
      read_attention_bias(j, where, layer);
      layer.attention.qk_norm = QkNorm::row;
      layer.norms = {.pre = false, .post = true};
    }};

}  // namespace tandem::model
