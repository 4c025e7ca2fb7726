#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/json_fwd.h"
#include "model/spec/roles.h"

namespace tandem::model {

/// Names the tensor that holds a norm, or the matrices of a stack one below the other.
struct StoredAs {
  Role stack;
  std::string_view tensor;  // after "model.layers.N."
};

/// A key of config.json that names the activation of FFNs.
struct GateKey {
  const char* key = "hidden_act";
  std::string_view absent = "silu";
};

/// One family of models: how its config.json reads, and what it leaves out.
struct Family {
  std::string_view architecture;  // key "architectures", and a ModelConfig's
  std::string_view model_type;    // key "model_type"
  std::string_view members;       // for people: "Llama 2, 3, 3.1, 3.2"
  // Defaults of transformers for keys that a file leaves out:
  int max_context = 0;          // max_position_embeddings
  bool scaled_context = false;  // true: RoPE scaling is included
  int head_dim = 0;             // head_dim; 0: hidden_size / num_attention_heads
  int n_heads = 0;              // num_attention_heads; 0: the file must give it
  int n_kv_heads = 0;           // num_key_value_heads; 0: num_attention_heads
  int vocab_size = 0;           // vocab_size; 0: the file must give it
  double rms_eps = 1e-6;        // rms_norm_eps
  double theta = 10000;         // rope_theta
  double sliding_theta = 0;     // rope_local_base_freq, of RoPE table 1; 0: there is one table
  bool tied = false;            // tie_word_embeddings
  bool partial = false;         // partial_rotary_factor is read
  GateKey gate = {};
  /// Fills kinds and kind_of of a configuration that has its sizes.
  /// errors   kind input at `where`: a key of a wrong type or value
  void (*read_layers)(const io::Json&, const std::string& where, ModelConfig&);
  std::span<const StoredAs> stored = {};
  const Family* text = nullptr;  // the family of key "text_config"; other parts are passed over
};

extern const Family kGemma3, kGemma3Whole, kGranite, kLlama, kMistral, kMistral3, kOlmo2, kPhi3,
    kQwen2, kQwen3, kSmolLm3;

/// All families, in the order in which messages list them.
std::span<const Family* const> families();

/// A tensor of a checkpoint and the first of its rows that are a matrix.
struct StoredPart {
  std::string tensor;
  int64_t first = 0;
  io::Shape shape;  // of the whole tensor
};
/// Returns where a matrix is stored: whole under its name, or in a fused tensor.
StoredPart stored_part(MatrixId id, const ModelConfig& config);

/// Names the first part of a configuration that no code computes, as "attention sinks"; empty if
/// all are computed.
std::string_view first_unserved(const ModelConfig& config);

/// Fills kinds and kind_of by a family.
/// errors   kind input at `where`: a type of layer that no family has, named with those known; as
///          Family::read_layers
void read_layers(const Family&, const io::Json&, const std::string& where, ModelConfig&);

/// The error of a key that lists something for each layer, but for another number of layers.
Error pattern_error(const char* key, int n_layers, size_t found, const std::string& where);

/// Reads key `attention_bias`: biases of q, k, v and o.
void read_attention_bias(const io::Json&, const std::string& where, LayerSpec&);

/// Sets the window of layers by key `layer_types`, or else as `slides` has it. A window is that of
/// key `sliding_window`: 4096 where it is absent, as in transformers, and none where it is null.
/// slides   [n_layers] 1 = the layer slides
/// errors   kind input at `where`: another type of layer, named with those known
void read_window(const io::Json&, const std::string& where, std::vector<uint8_t> slides,
                 ModelConfig&);

}  // namespace tandem::model
