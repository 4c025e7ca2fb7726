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
      layer.attention.qkv_bias = layer.attention.o_bias =
          io::find_bool(j, "attention_bias", where).value_or(false);
      layer.attention.qk_norm = QkNorm::row;
      layer.norms = {.pre = false, .post = true};
    }};

}  // namespace tandem::model
