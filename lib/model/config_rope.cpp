#include "model/config_rope.h"

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

/// original  tokens of original_max_position_embeddings, of the section or of the model
RopeScaling parse_yarn(const Json& j, const std::string& where) {
  RopeScaling s;
  s.kind = RopeScalingKind::yarn;
  s.factor = get_in_range(j, "factor", where, 1.0, kMaxFactor);
  s.original_context =
      static_cast<int>(io::get_int(j, "original_max_position_embeddings", where, 1, 1 << 30));
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
  if (j.contains("truncate") && !j.at("truncate").is_null())
    s.whole_dims = io::get_bool(j, "truncate", where);
  return s;
}

RopeScaling parse_scaling(const Json& j, const std::string& where) {
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
    scaling.original_context =
        static_cast<int>(io::get_int(j, "original_max_position_embeddings", where, 1, 1 << 30));
    if (scaling.high_freq_factor <= scaling.low_freq_factor)
      throw input_error(where, "'high_freq_factor' {} must exceed 'low_freq_factor' {}",
                        scaling.high_freq_factor, scaling.low_freq_factor);
    return scaling;
  }
  if (type == "yarn") return parse_yarn(j, where);
  throw input_error(where, "RoPE type {} is not supported", io::quote(type))
      .hint("supported: default, linear, llama3, yarn");
}

double parse_theta(const Json& j, const std::string& where, double absent) {
  if (!io::find_double(j, "rope_theta", where)) return absent;
  return get_in_range(j, "rope_theta", where, 1.0, kMaxTheta);
}

}  // namespace

ops::RopeSpec parse_rope(const Json& config, const std::string& where) {
  ops::RopeSpec rope;
  rope.theta = parse_theta(config, where, rope.theta);
  const Json* old_form = io::find_object(config, "rope_scaling", where);
  const Json* new_form = io::find_object(config, "rope_parameters", where);
  if (old_form != nullptr) rope.scaling = parse_scaling(*old_form, where + ": rope_scaling");
  if (new_form == nullptr) return rope;

  const std::string place = where + ": rope_parameters";
  const double theta = parse_theta(*new_form, place, rope.theta);
  const RopeScaling scaling = parse_scaling(*new_form, place);
  if (config.contains("rope_theta") && theta != rope.theta)
    throw input_error(where, "'rope_theta' {} contradicts {} in 'rope_parameters'", rope.theta,
                      theta)
        .hint("remove the wrong one");
  if (old_form != nullptr && !(scaling == rope.scaling))
    throw input_error(where, "'rope_scaling' contradicts 'rope_parameters'")
        .hint("remove the wrong one");
  if (io::find_double(*new_form, "partial_rotary_factor", place).value_or(1.0) != 1.0)
    throw input_error(place, "key 'partial_rotary_factor': only 1.0 is supported, found {}",
                      io::describe((*new_form)["partial_rotary_factor"]));
  return {theta, scaling};
}

}  // namespace tandem::model
