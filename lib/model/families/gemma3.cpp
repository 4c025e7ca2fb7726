#include <array>
#include <cmath>

#include "io/json.h"
#include "model/families/family.h"

namespace tandem::model {
namespace {

// A norm stands where Llama has the other one's name.
constexpr std::array kGemma3Tensors = {StoredAs{Role::ffn_pre, "pre_feedforward_layernorm.weight"}};

/// Refuses what changes scores or logits and no code computes.
void refuse_others(const io::Json& j, const std::string& where) {
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (io::find_double(j, key, where))
      throw input_error(where, "key '{}': only null is supported", key);
  if (j.contains("sliding_window") && j["sliding_window"].is_null())
    throw input_error(where, "key 'sliding_window': expected a number of tokens, found null");
  if (io::find_bool(j, "use_bidirectional_attention", where).value_or(false))
    throw input_error(where, "key 'use_bidirectional_attention': only false is supported");
}

/// Reads the number whose inverse root is the factor of scores.
double query_scalar(const io::Json& j, const std::string& where) {
  const double scalar = io::find_double(j, "query_pre_attn_scalar", where).value_or(256);
  if (!(scalar >= 1 && scalar <= 1e6))
    throw input_error(
        where, "key 'query_pre_attn_scalar': expected a number from 1 to 1e+06, found {}", scalar);
  return scalar;
}

/// Reads the windows: all layers slide but every n-th, where the file has no `layer_types`.
void read_windows(const io::Json& j, const std::string& where, ModelConfig& c) {
  const char* const renamed = "_sliding_window_pattern";  // by transformers from 4.53 on
  const char* const key = j.contains(renamed) ? renamed : "sliding_window_pattern";
  const int64_t every = io::find_int(j, key, where, 1, kMaxLayers).value_or(6);
  std::vector<uint8_t> slides = c.layers_from(0);
  for (int i = 0; i < c.n_layers; ++i)
    if ((i + 1) % every == 0) slides[static_cast<size_t>(i)] = 0;
  read_window(j, where, std::move(slides), c);
}

}  // namespace

const Family kGemma3 = {.architecture = "Gemma3ForCausalLM",
                        .model_type = "gemma3_text",
                        .members = "text of Gemma 3",
                        .max_context = 131072,
                        .scaled_context = true,
                        .head_dim = 256,
                        .n_heads = 8,
                        .n_kv_heads = 4,
                        .vocab_size = 262208,
                        .theta = 1e6,
                        .sliding_theta = 10000,
                        .tied = true,
                        .gate = {"hidden_activation", "gelu_pytorch_tanh"},
                        .read_layers =
                            [](const io::Json& j, const std::string& where, ModelConfig& c) {
                              refuse_others(j, where);
                              LayerSpec& layer = c.kinds.front();
                              read_attention_bias(j, where, layer);
                              layer.attention.qk_norm = QkNorm::head;
                              layer.attention.scale = {.of = query_scalar(j, where)};
                              layer.norms = {.post = true, .unit_offset = true};
                              c.embedding = {.scale = std::sqrt(static_cast<float>(c.dim)),
                                             .rounded = true};
                              read_windows(j, where, c);
                              for (LayerSpec& kind : c.kinds)
                                kind.attention.rope = kind.attention.window > 0 ? 1 : 0;
                            },
                        .stored = kGemma3Tensors};

const Family kGemma3Whole = {.architecture = "Gemma3ForConditionalGeneration",
                             .model_type = "gemma3",
                             .members = {},
                             .read_layers = nullptr,
                             .text = &kGemma3};

}  // namespace tandem::model
