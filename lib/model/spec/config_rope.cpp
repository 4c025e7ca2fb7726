#include "model/spec/config_rope.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::model {
namespace {

using io::Json;

constexpr double kMaxFactor = 1e6;  // beyond any context there is
constexpr double kMaxTheta = 1e12;

double get_in_range(const Json& j, const char* key, const std::string& where, double min,
                    double max) {
  const double value = io::get_double(j, key, where);
  if (value < min || value > max)
    throw input_error(where, "key '{}': expected a number from {} to {}, found {}", key, min, max,
                      value);
  return value;
}

/// A number that a file may leave out, or give as null.
double get_or(const Json& j, const char* key, const std::string& where, double absent, double min,
              double max) {
  if (!j.contains(key) || j.at(key).is_null()) return absent;
  return get_in_range(j, key, where, min, max);
}

/// How many times as far apart scores are by a multiple of YaRN's factor.
double yarn_multiple(double factor, double multiple) {
  return multiple * (ops::yarn_attention_factor(factor) - 1.0) + 1.0;
}

constexpr const char* kOriginalContext = "original_max_position_embeddings";

/// Keys outside the RoPE section that say how long the context was before scaling.
struct ModelContext {
  std::optional<int64_t> original;  // original_max_position_embeddings
  int64_t stated = 0;               // max_position_embeddings
  int pairs = 0;                    // pairs of dimensions that turn
};

/// transformers prefers the model's key to that of the section.
int original_context(const Json& j, const std::string& where, const ModelContext& of_model) {
  const auto own = io::find_int(j, kOriginalContext, where, 1, kMaxContext);
  return static_cast<int>(of_model.original ? *of_model.original : own.value_or(of_model.stated));
}

RopeScaling parse_yarn(const Json& j, const std::string& where, const ModelContext& of_model) {
  RopeScaling s;
  s.kind = RopeScalingKind::yarn;
  s.original_context = original_context(j, where, of_model);
  s.factor = j.contains("factor") && j.at("factor").is_null()
                 ? std::max(1.0, static_cast<double>(of_model.stated) / s.original_context)
                 : get_in_range(j, "factor", where, 1.0, kMaxFactor);
  s.beta_fast = get_or(j, "beta_fast", where, 32.0, 1e-6, kMaxFactor);
  s.beta_slow = get_or(j, "beta_slow", where, 1.0, 1e-6, kMaxFactor);
  if (s.beta_fast <= s.beta_slow)
    throw input_error(where, "'beta_fast' {} must exceed 'beta_slow' {}", s.beta_fast, s.beta_slow);
  const double own = get_or(j, "mscale", where, 0.0, 0.0, kMaxFactor);
  const double all = get_or(j, "mscale_all_dim", where, 0.0, 0.0, kMaxFactor);
  const double absent = own > 0 && all > 0
                            ? yarn_multiple(s.factor, own) / yarn_multiple(s.factor, all)
                            : ops::yarn_attention_factor(s.factor);
  s.attention_factor = get_or(j, "attention_factor", where, absent, 1e-6, kMaxFactor);
  if (j.contains("truncate"))  // null is false to transformers
    s.whole_dims = io::find_bool(j, "truncate", where).value_or(false);
  return s;
}

std::vector<float> get_factors(const Json& j, const char* key, const std::string& where, int n) {
  const Json* list = io::find_array(j, key, where);
  if (list == nullptr)
    throw input_error(where, "key '{}' is missing: longrope needs {} factors, one for each pair",
                      key, n)
        .hint("take config.json from the original model folder");
  if (list->size() != static_cast<size_t>(n))
    throw input_error(where,
                      "key '{}': expected {} factors, one for each pair that turns, found {}", key,
                      n, list->size());
  std::vector<float> factors;
  for (const Json& item : *list) {
    if (!item.is_number() || item.get<double>() < 1e-6 || item.get<double>() > kMaxFactor)
      throw input_error(where, "key '{}': expected numbers from 1e-06 to {}, found {}", key,
                        kMaxFactor, io::describe(item));
    factors.push_back(item.get<float>());
  }
  return factors;
}

RopeScaling parse_longrope(const Json& j, const std::string& where, const ModelContext& of_model) {
  constexpr int64_t kUsualContext = 4096;
  RopeScaling s;
  s.kind = RopeScalingKind::longrope;
  s.short_factors = get_factors(j, "short_factor", where, of_model.pairs);
  s.long_factors = get_factors(j, "long_factor", where, of_model.pairs);
  const auto own = io::find_int(j, kOriginalContext, where, 1, kMaxContext);
  s.original_context =
      static_cast<int>(of_model.original ? *of_model.original : own.value_or(kUsualContext));
  s.factor = get_or(j, "factor", where, static_cast<double>(of_model.stated) / s.original_context,
                    1e-6, kMaxFactor);
  const double usual =
      s.factor > 1 ? std::sqrt(1 + std::log(s.factor) / std::log(s.original_context)) : 1.0;
  s.attention_factor = get_or(j, "attention_factor", where, usual, 1e-6, kMaxFactor);
  return s;
}

RopeScaling parse_scaling(const Json& j, const std::string& where, const ModelContext& of_model) {
  RopeScaling scaling;
  const char* key = !j.contains("rope_type") && j.contains("type") ? "type" : "rope_type";
  if (!j.contains(key) && !j.contains("factor")) return scaling;  // as transformers reads it
  const std::string& type = io::get_string(j, key, where);
  if (type == "default") return scaling;
  if (type == "dynamic") {  // as the default up to the stated context, which runs do not exceed
    get_in_range(j, "factor", where, 1.0, kMaxFactor);
    return scaling;
  }
  if (type == "linear") {
    scaling.kind = RopeScalingKind::linear;
    scaling.factor = get_in_range(j, "factor", where, 1.0, kMaxFactor);
    return scaling;
  }
  if (type == "llama3") {
    scaling.kind = RopeScalingKind::llama3;
    scaling.factor = get_in_range(j, "factor", where, 1.0, kMaxFactor);
    scaling.low_freq_factor = get_in_range(j, "low_freq_factor", where, 1e-6, kMaxFactor);
    scaling.high_freq_factor = get_in_range(j, "high_freq_factor", where, 1e-6, kMaxFactor);
    scaling.original_context = original_context(j, where, of_model);
    if (scaling.high_freq_factor <= scaling.low_freq_factor)
      throw input_error(where, "'high_freq_factor' {} must exceed 'low_freq_factor' {}",
                        scaling.high_freq_factor, scaling.low_freq_factor);
    return scaling;
  }
  // Names that older files have for longrope; YaRN has no such factors.
  if (type == "longrope" || type == "su" || (type == "yarn" && j.contains("short_factor")))
    return parse_longrope(j, where, of_model);
  if (type == "yarn") return parse_yarn(j, where, of_model);
  throw input_error(where, "RoPE type {} is not supported", io::quote(type))
      .hint("supported: default, linear, dynamic, llama3, yarn, longrope");
}

constexpr const char* kPartial = "partial_rotary_factor";

/// Dimensions that turn, by a section that says: of a family that reads the key.
std::optional<int> find_rotated(const Json& j, const std::string& where,
                                const RopeDefaults& defaults) {
  const auto share = io::find_double(j, kPartial, where);
  if (!share || *share == 1.0) return std::nullopt;
  if (!defaults.partial)
    throw input_error(where, "key '{}': only 1.0 is supported, found {}", kPartial,
                      io::describe(j[kPartial]))
        .hint("choose a model with RoPE over all dimensions of a head");
  const int rotated = *share > 0 && *share < 1 ? static_cast<int>(defaults.head_dim * *share) : 0;
  if (rotated < 2 || rotated % 2 != 0)
    throw input_error(where, "key '{}': {} of a head of {} is no even number of dimensions",
                      kPartial, *share, defaults.head_dim);
  return rotated;
}

/// Some models of transformers 5 have a section for each kind of layer.
void refuse_nested(const Json& j, const std::string& where) {
  for (const auto& [key, value] : j.items())
    if (value.is_object())
      throw input_error(where,
                        "different RoPE parameters for kinds of layers ({}) are not supported",
                        io::quote(key))
          .hint("choose a model with the same RoPE in all layers");
}

std::optional<double> parse_theta(const Json& j, const char* key, const std::string& where) {
  if (!io::find_double(j, key, where)) return std::nullopt;
  return get_in_range(j, key, where, 1.0, kMaxTheta);
}

ops::RopeSpec parse_rope(const Json& config, const std::string& where,
                         const RopeDefaults& defaults) {
  std::optional<int> rotated = find_rotated(config, where, defaults);
  std::optional<double> theta = parse_theta(config, "rope_theta", where);
  std::optional<RopeScaling> scaling;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* section = io::find_object(config, key, where);
    if (section == nullptr) continue;
    const std::string place = fmt::format("{}: {}", where, key);
    refuse_nested(*section, place);
    if (const auto own = find_rotated(*section, place, defaults)) rotated = own;
    const ModelContext of_model{io::find_int(config, kOriginalContext, where, 1, kMaxContext),
                                defaults.max_positions, rotated.value_or(defaults.head_dim) / 2};
    const std::optional<double> own = parse_theta(*section, "rope_theta", place);
    if (theta && own && *theta != *own)
      throw input_error(where, "'rope_theta' {} contradicts {} in '{}'", *theta, *own, key)
          .hint("remove the wrong one");
    if (own) theta = own;
    const RopeScaling found = parse_scaling(*section, place, of_model);
    if (scaling && !(found == *scaling))
      throw input_error(where, "'rope_scaling' contradicts 'rope_parameters'")
          .hint("remove the wrong one");
    scaling = found;
  }
  return {theta.value_or(defaults.theta), scaling.value_or(RopeScaling{}), rotated.value_or(-1)};
}

}  // namespace

std::vector<ops::RopeSpec> parse_ropes(const Json& config, const std::string& where,
                                       const RopeDefaults& defaults) {
  if (defaults.sliding_theta == 0) return {parse_rope(config, where, defaults)};
  constexpr const char* kParameters = "rope_parameters";
  Json full = config, sliding = Json::object();
  if (const Json* sections = io::find_object(config, kParameters, where)) {
    const std::string place = fmt::format("{}: {}", where, kParameters);
    const Json* const of_full = io::find_object(*sections, "full_attention", place);
    const Json* const of_sliding = io::find_object(*sections, "sliding_attention", place);
    if (of_full != nullptr || of_sliding != nullptr) full.erase(kParameters);
    if (of_full != nullptr) full[kParameters] = *of_full;
    if (of_sliding != nullptr) sliding[kParameters] = *of_sliding;
  }
  if (const auto theta = parse_theta(config, "rope_local_base_freq", where))
    sliding["rope_theta"] = *theta;
  RopeDefaults of_sliding = defaults;
  of_sliding.theta = defaults.sliding_theta;
  return {parse_rope(full, where, defaults), parse_rope(sliding, where, of_sliding)};
}

}  // namespace tandem::model
