#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {
namespace {

void read_qwen_window(const io::Json& j, const std::string& where, ModelConfig& c) {
  if (!io::find_bool(j, "use_sliding_window", where).value_or(false)) return;
  const int64_t from = io::find_int(j, "max_window_layers", where, 0, kMaxLayers).value_or(28);
  read_window(j, where, c.layers_from(static_cast<int>(from)), c);
}

}  // namespace

const Family kQwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .members = "Qwen2, Qwen2.5",
    .max_context = 32768,
    .n_kv_heads = 32,
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      c.kinds.front().attention.qkv_bias = true;
      read_qwen_window(j, where, c);
    }};

const Family kQwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .members = "the dense models of Qwen3",
    .max_context = 32768,
    .head_dim = 128,
    .n_kv_heads = 32,
    .read_layers = [](const io::Json& j, const std::string& where, ModelConfig& c) {
      read_attention_bias(j, where, c.kinds.front());
      c.kinds.front().attention.qk_norm = QkNorm::head;
      read_qwen_window(j, where, c);
    }};

}  // namespace tandem::model
