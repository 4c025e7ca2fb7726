#pragma once
#include <array>
#include <string>

#include "model/spec/roles.h"

// What the reader and the writer of adapters share.
namespace tandem::model {

inline constexpr const char* kAdapterConfigFile = "s2ft_config.json";
inline constexpr const char* kAdapterTensorFile = "s2ft_adapter.safetensors";

/// In the folder of a run.
inline constexpr const char* kRunAdapterFolder = "adapter";

inline constexpr const char* kAdapterFormatKey = "format";
inline constexpr const char* kAdapterFormat = "s2ft-adapter";
inline constexpr const char* kAdapterVersionKey = "version";
inline constexpr const char* kAdapterVersion = "1";
inline constexpr const char* kAdapterModeKey = "mode";
inline constexpr const char* kAdapterMode =
    "replace";  // values are the new weights, not differences
inline constexpr const char* kAdapterBaseKey = "base_model";
inline constexpr const char* kAdapterFingerprintKey = "base_fingerprint";
inline constexpr const char* kAdapterStepsKey = "trained_steps";
inline constexpr const char* kAdapterSelectionKey = "selection";
inline constexpr const char* kAdapterKindKey = "kind";
inline constexpr const char* kAdapterDtypeKey = "dtype";

/// What both files say.
inline constexpr std::array kAdapterSharedKeys = {kAdapterFormatKey,      kAdapterVersionKey,
                                                  kAdapterModeKey,        kAdapterBaseKey,
                                                  kAdapterFingerprintKey, kAdapterStepsKey};
/// What both files say where they say it at all; these are for people, and change no weight.
inline constexpr std::array kAdapterNotedKeys = {kAdapterSelectionKey, kAdapterKindKey,
                                                 kAdapterDtypeKey};

/// "model.layers.3.self_attn.q_proj.s2."; "index" or "value" follows.
inline std::string adapter_prefix(MatrixId id) {
  const std::string name = canonical_name(id);
  return name.substr(0, name.rfind('.') + 1) + "s2.";
}

}  // namespace tandem::model
