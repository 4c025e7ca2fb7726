#pragma once
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/weight_table.h"

namespace tandem::model {

/// What adapter_config.json of PEFT says of an adapter: the matrices that have factors.
struct LowRankConfig {
  struct Module {
    int64_t rank = 0;
    float gamma = 1;  // W + gamma B A
  };
  bool magnitudes = false;  // DoRA
  std::map<std::pair<Weight, int>, Module> modules;
};

/// By PEFT's rules: its defaults, suffixes or an expression as targets, patterns of ranks and
/// alphas, of which the first that fits holds.
/// errors   kind input at `where`: not of LoRA, malformed, changes more than the seven matrices of a
///          layer, or in another way than by factors, or none of them (what to do instead)
LowRankConfig parse_low_rank_config(std::string_view text, const std::string& where,
                                    const ModelConfig& config);

}  // namespace tandem::model
