#include "model/adapters/low_rank_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
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
    "merge the adapter into its model with PEFT (merge_and_unload), and set model.path to the "
    "result";
/// PEFT's, where a file does not say.
constexpr int64_t kDefaultRank = 8;
constexpr double kDefaultAlpha = 8;
constexpr int64_t kMostRank = 65536;
/// Matrices outside the layers.
constexpr std::array kOutside = {Role::embedding, Role::head};

template <class... Args>
Error refused(const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  return formatted_error(ErrorKind::input, where, text, fmt::make_format_args(args...))
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

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + io::quote(name);
  return text;
}

/// The items of a list; one item where the value is a string.
std::vector<std::string> strings(const io::Json& config, const char* key,
                                 const std::string& where) {
  std::vector<std::string> all;
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return all;
  if (it->is_string()) return {it->get<std::string>()};
  for (const io::Json& item : io::get_array(config, key, where))
    all.push_back(io::as_string(item, std::string("an item of '") + key + "'", where));
  return all;
}

bool is_string(const io::Json& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_string();
}

bool ends_with_name(std::string_view module, const std::string& name) {
  return module == name || module.ends_with("." + name);
}

/// layers_to_transform and layers_pattern.
class Layers {
 public:
  Layers(const io::Json& config, const std::string& where) {
    const char* const key = "layers_to_transform";
    if (const auto it = config.find(key); it == config.end() || it->is_null()) {
    } else if (it->is_array()) {
      for (const io::Json& item : *it)
        layers_.insert(io::as_int(item, "an item of 'layers_to_transform'", where, 0));
    } else {
      layers_ = {io::get_int(config, key, where, 0)};
    }
    for (const std::string& name : strings(config, "layers_pattern", where))
      if (!name.empty()) names_.emplace_back("(?:.*?\\.)?(?:" + name + ")\\.\\d+\\..*", where);
  }
  bool all() const { return layers_.empty(); }
  /// layer   of the module; negative: outside the layers
  bool has(std::string_view module, int layer, text::RegexScratch& scratch) const {
    if (all()) return true;
    const auto fits = [&](const Pattern& name) { return name.fits(module, scratch); };
    return layers_.contains(layer) && (names_.empty() || std::ranges::any_of(names_, fits));
  }

 private:
  std::set<int64_t> layers_;
  std::vector<Pattern> names_;
};

/// target_modules or exclude_modules: names, or one expression.
class Targets {
 public:
  Targets(const io::Json& config, const char* key, const std::string& where,
          std::vector<std::string> fallback)
      : names_(strings(config, key, where)) {
    if (const auto it = config.find(key); it == config.end() || it->is_null()) {
      names_ = std::move(fallback);
    } else if (it->is_string()) {
      std::string lower = names_.front();
      std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
      all_linear_ = lower == "all-linear";
      if (!all_linear_) pattern_.emplace(names_.front(), where);
      names_.clear();
    }
  }
  bool has(std::string_view module, Role weight, text::RegexScratch& scratch) const {
    if (all_linear_) return in_layers(weight);
    if (pattern_) return pattern_->fits(module, scratch);
    return std::ranges::any_of(
        names_, [&](const std::string& name) { return ends_with_name(module, name); });
  }
  /// True if a name is the module's full path, which layers_to_transform does not limit.
  bool has_path(std::string_view module) const {
    return std::ranges::find(names_, module) != names_.end();
  }
  /// Names that no module ends with.
  std::vector<std::string> unmatched(const std::vector<std::string>& modules) const {
    std::vector<std::string> found;
    for (const std::string& name : names_)
      if (std::ranges::none_of(modules,
                               [&](const std::string& m) { return ends_with_name(m, name); }))
        found.push_back(name);
    return found;
  }

 private:
  std::vector<std::string> names_;
  std::optional<Pattern> pattern_;
  bool all_linear_ = false;
};

bool is_empty(const io::Json& value) {
  return value.is_null() || value == false ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// Inits that PEFT applies to the base's weights as well whenever it loads the adapter.
constexpr std::array kBaseInits = {"pissa", "olora", "corda", "loftq", "lora_ga"};
/// Inits that set only the factors, which the file has.
constexpr std::array kFactorInits = {"gaussian", "eva", "orthogonal", "mica"};

void check_init(const io::Json& config, const std::string& where) {
  if (!is_string(config, "init_lora_weights")) return;
  auto init = config["init_lora_weights"].get<std::string>();
  const std::string said = init;
  std::ranges::transform(init, init.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* other : kBaseInits)
    if (init.starts_with(other))
      throw refused(
          where,
          "'init_lora_weights' is {}, with which PEFT also changes the base weights: not supported",
          io::quote(said))
          .hint(
              "convert it to plain LoRA with PEFT: save_pretrained(..., "
              "path_initial_model_for_weight_conversion=...)");
  if (std::ranges::find(kFactorInits, init) == kFactorInits.end())
    throw refused(where, "'init_lora_weights' is {}, which is not supported", io::quote(said));
}

/// Settings that change numbers in ways that are not supported.
void check_settings(const io::Json& config, const std::string& where) {
  if (const std::string& type = io::get_string(config, "peft_type", where); type != "LORA")
    throw refused(where, "is an adapter of type {}, expected LORA", io::quote(type));
  for (const char* key : {"target_parameters", "layer_replication", "use_qalora", "use_bdlora",
                          "arrow_config", "alora_invocation_tokens", "kasa_config"})
    if (const auto it = config.find(key); it != config.end() && !is_empty(*it))
      throw refused(where, "'{}' is {}, which is not supported", key, io::describe(*it));
  check_init(config, where);
  if (!is_string(config, "target_modules")) return;
  for (const char* key : {"layers_to_transform", "layers_pattern"})
    if (const auto it = config.find(key); it != config.end() && !is_empty(*it))
      throw refused(where, "'{}' is {}, but 'target_modules' is a regular expression", key,
                    io::describe(*it))
          .hint("remove one of the two keys, as PEFT requires");
}

std::vector<int32_t> token_ids(const io::Json& list, const std::string& where,
                               const ModelConfig& config) {
  const char* const key = "trainable_token_indices";
  if (!list.is_array())
    throw refused(where, "'{}' holds {}, expected an array of token ids", key, io::describe(list));
  std::vector<int32_t> ids;
  for (const io::Json& id : list)
    ids.push_back(static_cast<int32_t>(
        io::as_int(id, "an item of 'trainable_token_indices'", where, 0, config.vocab_size - 1)));
  return ids;
}

std::map<Role, std::vector<int32_t>> read_tokens(const io::Json& config, const std::string& where,
                                                 const ModelConfig& model) {
  std::map<Role, std::vector<int32_t>> tokens;
  const auto it = config.find("trainable_token_indices");
  if (it == config.end() || it->is_null()) return tokens;
  if (!it->is_object()) {
    tokens[Role::embedding] = token_ids(*it, where, model);
    return tokens;
  }
  for (const auto& [name, list] : it->items()) {
    const auto weight =
        std::ranges::find_if(kOutside, [&](Role w) { return module_path({w}).ends_with(name); });
    if (weight == kOutside.end())
      throw refused(where, "'trainable_token_indices' names {}, expected embed_tokens or lm_head",
                    io::quote(name));
    tokens[*weight] = token_ids(list, where, model);
  }
  // A tied head takes the embedding's tokens where both have the same ones.
  if (model.head.tied && tokens.size() == 2 && tokens[Role::head] == tokens[Role::embedding])
    tokens.erase(Role::head);
  return tokens;
}

}  // namespace

bool LowRankConfig::saves(std::string_view module) const {
  for (std::string_view path = module;; path = path.substr(0, path.rfind('.'))) {
    if (std::ranges::any_of(saved, [&](const std::string& name) { return path.ends_with(name); }))
      return true;
    if (path.find('.') == std::string_view::npos) return false;
  }
}

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
  const Layers layers(json, where);

  LowRankConfig found;
  found.magnitudes = io::find_bool(json, "use_dora", where).value_or(false);
  found.biases = io::find_bool(json, "lora_bias", where).value_or(false);
  found.saved = strings(json, "modules_to_save", where);
  found.tokens = read_tokens(json, where, config);
  found.keeps_tie =
      config.head.tied && io::find_bool(json, "ensure_weight_tying", where).value_or(false);
  text::RegexScratch scratch;
  std::vector<std::string> modules;
  const auto add = [&](MatrixId id, const std::string& module) {
    modules.push_back(module);
    if (!targets.has(module, id.role, scratch) || excluded.has(module, id.role, scratch)) return;
    if (!targets.has_path(module) &&
        !layers.has(module, in_layers(id.role) ? id.layer : -1, scratch))
      return;
    if (found.saves(module)) return;
    const double r = ranks.of(module, scratch).value_or(static_cast<double>(rank));
    const double scaled = alphas.of(module, scratch).value_or(alpha);
    if (r != std::floor(r) || r > static_cast<double>(kMostRank))
      throw refused(where, "the rank of {} is {}, expected an integer up to {}", io::quote(module),
                    r, kMostRank);
    const auto gamma = static_cast<float>(scaled / (rslora ? std::sqrt(r) : r));
    if (!std::isfinite(gamma))
      throw refused(where, "'lora_alpha' of {} is {}, expected a number in the range of f32",
                    io::quote(module), scaled);
    found.modules.insert({id, {static_cast<int64_t>(r), gamma, module}});
  };
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role weight : kLayerRoles) {
      const MatrixId id{weight, layer};
      add(id, stored_module(id, config));
      if (stored_module(id, config) != module_path(id)) add(id, module_path(id));
    }
  for (const Role weight : kOutside) add({weight}, module_path({weight}));
  const std::vector<std::string> unmatched = targets.unmatched(modules);
  if (found.modules.empty() && json.value("target_modules", io::Json()) != "dummy-target-modules")
    throw refused(where, "'target_modules' names no matrix of this model{}",
                  unmatched.empty() ? "" : fmt::format(": {}", quoted(unmatched)))
        .hint("set model.path to the base model that the adapter was trained on");
  if (!unmatched.empty())
    found.warnings.push_back(fmt::format(
        "{}: 'target_modules' names {}, which this model does not have", where, quoted(unmatched)));
  if (found.magnitudes && found.modules.contains({Role::embedding}))
    throw refused(where, "'use_dora' for target 'embed_tokens' is not supported");
  return found;
}

}  // namespace tandem::model
