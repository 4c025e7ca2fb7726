#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec/config.h"
#include "model/spec/roles.h"

namespace tandem::model {

/// What adapter_config.json of PEFT says about an adapter.
struct LowRankConfig {
  struct Module {
    int64_t rank = 0;
    float gamma = 1;   // W + gamma B A
    std::string path;  // PEFT's name, perhaps that of a tensor with several matrices
  };
  bool magnitudes = false;  // DoRA
  /// Matrices that have factors: kLayerRoles, embedding and head.
  std::map<MatrixId, Module> modules;
  std::vector<std::string> saved;               // modules_to_save
  std::map<Role, std::vector<int32_t>> tokens;  // trainable tokens of embedding and head
  bool keeps_tie = false;                       // ensure_weight_tying, in a model that ties
  bool biases = false;                          // lora_bias
  std::vector<std::string> warnings;

  /// True if modules_to_save names the module or one that contains it.
  bool saves(std::string_view module) const;
};

/// By PEFT's rules: its defaults, suffixes or an expression as targets, patterns of ranks and
/// alphas, of which the first that fits holds. Target names that the model lacks get a warning.
/// errors   kind input at `where`: not LoRA, malformed, changes numbers in a way that is not
///          supported, or targets no matrix of the model (what to do instead)
LowRankConfig parse_low_rank_config(std::string_view text, const std::string& where,
                                    const ModelConfig& config);

}  // namespace tandem::model
