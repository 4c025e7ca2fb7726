#pragma once
#include <array>
#include <string>
#include <string_view>

#include "model/families/family.h"

// Names in folders of PEFT that the reader and the writer of low-rank adapters share.
namespace tandem::model {

inline constexpr const char* kPeftConfigFile = "adapter_config.json";
inline constexpr const char* kPeftTensorFile = "adapter_model.safetensors";
inline constexpr const char* kPeftPickleFile = "adapter_model.bin";

/// "model.layers.3.self_attn.q_proj", PEFT's name of a matrix.
inline std::string module_path(MatrixId id) {
  const std::string name = canonical_name(id);
  return name.substr(0, name.rfind('.'));
}

/// Returns PEFT's name of the tensor that holds a matrix: "model.layers.3.self_attn.qkv_proj".
inline std::string stored_module(MatrixId id, const ModelConfig& config) {
  const std::string name = stored_part(id, config).tensor;
  return name.substr(0, name.rfind('.'));
}

/// The names of a matrix's tensors.
inline std::string factor_name(const std::string& module, const char* of) {
  return "base_model.model." + module + "." + of;
}
inline constexpr const char* kFactorA = "lora_A.weight";
inline constexpr const char* kFactorB = "lora_B.weight";
inline constexpr const char* kFactorMagnitude = "lora_magnitude_vector";
inline constexpr const char* kEmbeddingA = "lora_embedding_A";
inline constexpr const char* kEmbeddingB = "lora_embedding_B";
inline constexpr const char* kBiasB = "lora_B.bias";
inline constexpr const char* kTokenRows = "token_adapter.trainable_tokens_delta";

}  // namespace tandem::model
