#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "model/spec/layer_spec.h"
#include "ops/rope_table.h"

namespace tandem::model {

using ops::RopeScaling;
using ops::RopeScalingKind;

/// Tokens of the longest context that is accepted, well above any published model's.
inline constexpr int64_t kMaxContext = 1 << 30;
inline constexpr int64_t kMaxLayers = 1 << 12;

/// Shape and constants of a model, from its config.json. Every count is positive and bounded so
/// that products of any three fit in int64_t; n_heads is a multiple of n_kv_heads; head_dim is
/// even.
struct WeightFormats;

struct ModelConfig {
  std::string name;          // folder or synthetic name, for people
  std::string architecture;  // as Hugging Face spells it: "LlamaForCausalLM"
  int dim = 0;               // D
  int n_layers = 0;          // L
  int n_heads = 0;           // Hq
  int n_kv_heads = 0;        // Hkv
  int head_dim = 0;          // d; dim need not be n_heads * head_dim
  int ffn_dim = 0;           // F
  int vocab_size = 0;        // V
  // Of the rows of embedding and head, those that this rank holds, padded; 0 rows: all.
  int vocab_first = 0, vocab_rows = 0;
  bool layers_divided = false;  // heads and channels are a rank's, and sums those of all ranks
  int all_heads = 0, all_kv_heads = 0;  // heads of all ranks, if divided
  bool repeats_kv_head = false;         // the first KV head is another rank's too
  double rms_eps = 1e-6;
  std::vector<ops::RopeSpec> ropes = std::vector<ops::RopeSpec>(1);  // by AttentionSpec::rope
  int max_context = 0;                                               // tokens
  int stated_context = 0;  // max_position_embeddings; RoPE scaling may extend it to max_context
  std::string context_key = "max_position_embeddings";  // its key, for messages
  bool trained = true;  // false: random weights, for which no context is too long
  std::vector<LayerSpec> kinds = std::vector<LayerSpec>(1);  // the distinct layers
  std::vector<uint8_t> kind_of;  // [n_layers] indices of kinds; empty: all of the first
  EmbeddingSpec embedding;
  HeadSpec head;
  std::optional<int> bos_id;
  std::vector<int> eos_ids;  // end-of-text ids; generation stops at any
  DType dtype = DType::f32;  // what the checkpoint says it holds: f32, bf16 or f16
  std::shared_ptr<const WeightFormats> formats = {};  // null: no matrix is codes in memory

  int group_size() const { return n_heads / n_kv_heads; }  // G
  int head_rows() const { return vocab_rows > 0 ? vocab_rows : vocab_size; }
  int q_dim() const { return n_heads * head_dim; }
  int kv_dim() const { return n_kv_heads * head_dim; }
  const LayerSpec& layer(int i) const {
    return kinds[kind_of.empty() ? 0 : kind_of[static_cast<size_t>(i)]];
  }
  /// Which weights a layer has, equal in all layers: biases and norms.
  bool qkv_bias() const { return kinds.front().attention.qkv_bias; }
  bool o_bias() const { return kinds.front().attention.o_bias; }
  bool mlp_bias() const { return kinds.front().ffn.bias; }
  QkNorm qk_norm() const { return kinds.front().attention.qk_norm; }
  const NormSpec& norms() const { return kinds.front().norms; }
  bool has_branch() const { return std::ranges::any_of(kinds, &LayerSpec::has_branch); }
  /// Returns [n_layers] 1 = layer `first` or a later one.
  std::vector<uint8_t> layers_from(int first) const;
  /// Some layers attend to the last `window` positions.
  /// slides   [n_layers] 1 = the layer slides
  void slide(int window, const std::vector<uint8_t>& slides);
  /// Sets kinds and kind_of.
  /// layers   [n_layers]
  void set_layers(const std::vector<LayerSpec>& layers);
  /// Window of the sliding layers and the first of them; {0, 0}: none slides.
  struct Sliding {
    int window = 0, from = 0;
  };
  Sliding sliding() const;
};

/// config.json in the spelling of transformers before 5 (rope_theta, rope_scaling, torch_dtype) or
/// since (rope_parameters, dtype).
/// errors   kind input at `where`: bad JSON, a key missing or out of range, an unsupported
///          architecture, RoPE type, activation or quantisation (each named, with the remedy)
ModelConfig parse_config(std::string_view text, const std::string& where);

/// End-of-text ids of a generation_config.json; empty when it names none.
/// errors   kind input at `where`
std::vector<int> parse_generation_eos(std::string_view text, const std::string& where,
                                      int vocab_size);

/// Reads config.json of a model folder, and generation_config.json if there: its end-of-text ids
/// replace those of config.json, as transformers does it.
ModelConfig load_config(const std::filesystem::path& folder);

/// Shape of a `synthetic:` model: a built-in name or the path of a config.json.
/// errors   kind input: neither a known name (lists them) nor a file
ModelConfig synthetic_config(const std::string& name_or_path);
std::vector<std::string> synthetic_names();

}  // namespace tandem::model
