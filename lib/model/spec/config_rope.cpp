#include "model/spec/config_rope.h"

#include <algorithm>
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

RopeScaling parse_scaling(const Json& j, const std::string& where, const ModelContext& of_model) {
  RopeScaling scaling;
  const char* key = !j.contains("rope_type") && j.contains("type") ? "type" : "rope_type";
  if (!j.contains(key) && !j.contains("factor")) return scaling;  // as transformers reads it
  const std::string& type = io::get_string(j, key, where);
  if (type == "default") return scaling;
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
  if (type == "yarn") return parse_yarn(j, where, of_model);
  throw input_error(where, "RoPE type {} is not supported", io::quote(type))
      .hint("supported: default, linear, llama3, yarn");
}

void refuse_partial(const Json& j, const std::string& where) {
  if (io::find_double(j, "partial_rotary_factor", where).value_or(1.0) != 1.0)
    throw input_error(where, "key 'partial_rotary_factor': only 1.0 is supported, found {}",
                      io::describe(j["partial_rotary_factor"]))
        .hint("choose a model with RoPE over all dimensions of a head");
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

std::optional<double> parse_theta(const Json& j, const std::string& where) {
  if (!io::find_double(j, "rope_theta", where)) return std::nullopt;
  return get_in_range(j, "rope_theta", where, 1.0, kMaxTheta);
}

}  // namespace

ops::RopeSpec parse_rope(const Json& config, const std::string& where, int64_t max_positions,
                         double usual_theta) {
  const ModelContext of_model{io::find_int(config, kOriginalContext, where, 1, kMaxContext),
                              max_positions};
  refuse_partial(config, where);
  std::optional<double> theta = parse_theta(config, where);
  std::optional<RopeScaling> scaling;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* section = io::find_object(config, key, where);
    if (section == nullptr) continue;
    const std::string place = fmt::format("{}: {}", where, key);
    refuse_nested(*section, place);
    refuse_partial(*section, place);
    const std::optional<double> own = parse_theta(*section, place);
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
  return {theta.value_or(usual_theta), scaling.value_or(RopeScaling{})};
}

}  // namespace tandem::model
