#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/spec/config.h"

namespace tandem::model {

/// One value of a configuration that changes logits.
struct Setting {
  std::string key;  // as in config.json
  std::string value;
  /// The value needs no record: names and shapes of the weights imply it, or config.json need not
  /// state it.
  bool usual = true;
};

/// Everything in a configuration that changes logits, or keys and values in a cache.
std::vector<Setting> settings_of(const ModelConfig& config);

/// One line each, `key=value`.
std::string settings_text(const std::vector<Setting>& settings);

/// The settings that `recorded`, a text of settings_text, has otherwise, one line each: "'factor'
/// was 2, is 4". A setting that it lacks counts if it is not usual.
std::vector<std::string> changed_settings(const std::vector<Setting>& settings,
                                          std::string_view recorded);

}  // namespace tandem::model
