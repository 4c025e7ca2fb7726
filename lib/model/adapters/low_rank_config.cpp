#include "model/adapters/low_rank_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_format.h"
#include "text/regex.h"

namespace tandem::model {
namespace {

constexpr const char* kMergeHint =
    "merge it into its model with PEFT (merge_and_unload), and set model.path to the result";
/// PEFT's, where a file does not say.
constexpr int64_t kDefaultRank = 8;
constexpr double kDefaultAlpha = 8;
constexpr int64_t kMostRank = 65536;

template <class... Args>
Error refused(const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  return Error::formatted(ErrorKind::input, where, text, fmt::make_format_args(args...))
      .hint(kMergeHint);
}

/// An expression that must fit a whole name.
class Pattern {
 public:
  Pattern(const std::string& expression, const std::string& where)
      : regex_("^(?:" + expression + ")$", where) {}
  bool fits(std::string_view name, text::RegexScratch& scratch) const {
    text::Regex::Match match{};
    return regex_.find(name, 0, scratch, match);
  }

 private:
  text::Regex regex_;
};

/// rank_pattern and alpha_pattern: numbers by expressions, in the file's order.
class Overrides {
 public:
  Overrides(const nlohmann::ordered_json& config, const char* key, const std::string& where) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) return;
    if (!it->is_object())
      throw refused(where, "'{}' is {}, expected an object", key, io::describe(io::Json(*it)));
    for (const auto& [name, value] : it->items()) {
      if (!value.is_number() || !(value.get<double>() > 0))
        throw refused(where, "'{}' of {} is {}, expected a positive number", key, io::quote(name),
                      io::describe(io::Json(value)));
      all_.emplace_back(Pattern("(?:.*\\.)?(?:" + name + ")", where), value.get<double>());
    }
  }
  std::optional<double> of(std::string_view module, text::RegexScratch& scratch) const {
    for (const auto& [pattern, value] : all_)
      if (pattern.fits(module, scratch)) return value;
    return {};
  }

 private:
  std::vector<std::pair<Pattern, double>> all_;
};

/// target_modules or exclude_modules.
class Targets {
 public:
  Targets(const io::Json& config, const char* key, const std::string& where,
          std::vector<std::string> fallback) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) {
      suffixes_ = std::move(fallback);
    } else if (it->is_string()) {
      const auto text = it->get<std::string>();
      all_ = text == "all-linear";
      if (!all_) pattern_.emplace(text, where);
    } else {
      for (const io::Json& item : io::get_array(config, key, where))
        suffixes_.push_back(io::as_string(item, std::string("an item of '") + key + "'", where));
    }
  }
  bool has(std::string_view module, text::RegexScratch& scratch) const {
    if (all_) return true;
    if (pattern_) return pattern_->fits(module, scratch);
    return std::ranges::any_of(suffixes_, [&](const std::string& suffix) {
      return module == suffix || module.ends_with("." + suffix);
    });
  }
  /// A suffix that no module ends with.
  std::optional<std::string> unused(const std::vector<std::string>& modules) const {
    for (const std::string& suffix : suffixes_)
      if (std::ranges::none_of(modules, [&](const std::string& m) {
            return m == suffix || m.ends_with("." + suffix);
          }))
        return suffix;
    return {};
  }

 private:
  std::vector<std::string> suffixes_;
  std::optional<Pattern> pattern_;
  bool all_ = false;
};

bool is_empty(const io::Json& value) {
  return value.is_null() || value == false ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// Settings that change a model in ways that are not read.
void check_settings(const io::Json& config, const std::string& where) {
  if (const std::string& type = io::get_string(config, "peft_type", where); type != "LORA")
    throw refused(where, "is an adapter of type {}, this build reads LORA", io::quote(type));
  if (const auto bias = io::find_string(config, "bias", where).value_or("none"); bias != "none")
    throw refused(where, "'bias' is {}, expected 'none'", io::quote(bias));
  for (const char* key :
       {"fan_in_fan_out", "modules_to_save", "lora_bias", "layers_pattern",
        "trainable_token_indices", "target_parameters", "megatron_config", "layer_replication",
        "use_qalora", "arrow_config", "alora_invocation_tokens"})
    if (const auto it = config.find(key); it != config.end() && !is_empty(*it))
      throw refused(where, "'{}' is {}, which this build does not read", key, io::describe(*it));
  // These change the base model's weights as well.
  if (const auto it = config.find("init_lora_weights"); it != config.end() && it->is_string()) {
    const auto init = it->get<std::string>();
    for (const char* other : {"pissa", "olora", "corda", "loftq"})
      if (init.starts_with(other))
        throw refused(where, "'init_lora_weights' is {}: its base model's weights are others",
                      io::quote(init));
  }
}

/// layers_to_transform; empty: all.
std::set<int64_t> layers_of(const io::Json& config, const std::string& where) {
  const char* const key = "layers_to_transform";
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return {};
  if (!it->is_array()) return {io::get_int(config, key, where, 0)};
  std::set<int64_t> layers;
  for (const io::Json& item : *it)
    layers.insert(io::as_int(item, "an item of 'layers_to_transform'", where, 0));
  return layers;
}

}  // namespace

LowRankConfig parse_low_rank_config(std::string_view text, const std::string& where,
                                    const ModelConfig& config) {
  const io::Json json = io::parse_json(text, where);
  if (!json.is_object()) throw refused(where, "expected an object, found {}", io::describe(json));
  check_settings(json, where);
  const auto ordered = nlohmann::ordered_json::parse(text);
  const Overrides ranks(ordered, "rank_pattern", where), alphas(ordered, "alpha_pattern", where);
  const int64_t rank = io::find_int(json, "r", where, 1, kMostRank).value_or(kDefaultRank);
  const double alpha = io::find_double(json, "lora_alpha", where).value_or(kDefaultAlpha);
  const bool rslora = io::find_bool(json, "use_rslora", where).value_or(false);
  const Targets targets(json, "target_modules", where, {"q_proj", "v_proj"});
  const Targets excluded(json, "exclude_modules", where, {});
  const std::set<int64_t> layers = layers_of(json, where);

  LowRankConfig found;
  found.magnitudes = io::find_bool(json, "use_dora", where).value_or(false);
  text::RegexScratch scratch;
  std::vector<std::string> modules;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Weight weight : adapter_weights()) {
      const std::string module = modules.emplace_back(module_path(weight, layer));
      if (!layers.empty() && !layers.contains(layer)) continue;
      if (!targets.has(module, scratch) || excluded.has(module, scratch)) continue;
      const double r = ranks.of(module, scratch).value_or(static_cast<double>(rank));
      const double scaled = alphas.of(module, scratch).value_or(alpha);
      if (r != std::floor(r) || r > static_cast<double>(kMostRank))
        throw refused(where, "the rank of {} is {}, expected an integer up to {}",
                      io::quote(module), r, kMostRank);
      const auto gamma = static_cast<float>(scaled / (rslora ? std::sqrt(r) : r));
      if (!std::isfinite(gamma))
        throw refused(where, "'lora_alpha' of {} is {}, expected a number that f32 holds",
                      io::quote(module), scaled);
      found.modules[{weight, layer}] = {static_cast<int64_t>(r), gamma};
    }
  if (const auto unused = targets.unused(modules))
    throw refused(where, "changes {}, which is no matrix of a layer of this model",
                  io::quote(*unused));
  if (found.modules.empty())
    throw refused(where, "'target_modules' names no matrix of a layer of this model");
  return found;
}

}  // namespace tandem::model
