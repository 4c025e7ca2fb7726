#include "model/families/family.h"

namespace tandem::model {

const Family kMistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .members = {},
    .max_context = 131072,
    .n_kv_heads = 8,
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      read_window(j, where, c.layers_from(0), c);
    }};

const Family kMistral3 = {.architecture = "Mistral3ForConditionalGeneration",
                          .model_type = "mistral3",
                          .members = "text of Mistral Small 3.1",
                          .read_layers = nullptr,
                          .text = &kMistral};

}  // namespace tandem::model
