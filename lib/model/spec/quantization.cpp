#include "model/spec/quantization.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <regex>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::model {
namespace {

using io::Json;
using Codes = QuantScheme::Codes;

constexpr const char* kOther = "use the original checkpoint in bf16, f16 or f32, or a GGUF file";
constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr int64_t kMaxGroup = 1 << 14;
constexpr const char* kMethodKey = "quant_method";

template <class... Args>
Error unsupported(const std::string& where, fmt::format_string<Args...> text, Args&&... args) {
  return input_error(where, "{}, which is not supported",
                     fmt::format(text, std::forward<Args>(args)...))
      .hint(kOther);
}

/// True for a key that is absent, null or empty.
bool is_empty(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it == j.end() || it->is_null() || (it->is_structured() && it->empty());
}

/// The value of the first of two keys that is there; old files have the second.
std::optional<int64_t> find_either(const Json& j, const char* key, const char* old,
                                   const std::string& where) {
  return io::find_int(j, j.contains(key) ? key : old, where);
}

/// Inputs of a group; 0: all of a row, which files call -1.
/// errors   kind input: no group that products take
int64_t group_of(std::optional<int64_t> given, const std::string& where) {
  if (!given)
    throw input_error(where, "key 'group_size' is missing")
        .hint("take config.json and the weights from the same folder");
  if (*given == -1) return 0;
  if (!is_group(*given))
    throw unsupported(where, "key 'group_size' is {}, expected -1, 16 or a multiple of 32", *given);
  return *given;
}

int bits_of(std::optional<int64_t> given, std::initializer_list<int> known,
            const std::string& where) {
  for (const int bits : known)
    if (given == bits) return bits;
  throw unsupported(where, "weights have {} bits, expected {}",
                    given ? fmt::format("{}", *given) : "an unknown number of",
                    fmt::join(known, " or "));
}

void add_names(const Json& j, const char* key, const std::string& where,
               std::vector<std::string>& names) {
  if (const Json* list = io::find_array(j, key, where))
    for (const Json& name : *list)
      names.push_back(io::as_string(name, fmt::format("an entry of '{}'", key), where));
}

/// Outputs and inputs of a block: [128, 128], or "128x128" in old files.
void read_block(const Json& value, const std::string& where, QuantScheme& s) {
  constexpr const char* kWhat = "the sizes of a block";
  if (value.is_array() && value.size() == 2) {
    s.outputs = io::as_int(value[0], kWhat, where, 1, kMaxGroup);
    s.inputs = io::as_int(value[1], kWhat, where, 1, kMaxGroup);
    return;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : std::string();
  std::smatch match;
  if (!std::regex_match(text, match, std::regex("([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")))
    throw input_error(where, "the sizes of a block: expected two positive numbers, found {}",
                      io::describe(value));
  s.outputs = std::stoi(match[1]);
  s.inputs = std::stoi(match[2]);
}

/// The weights of a group of compressed-tensors.
QuantScheme read_weights(const Json& w, const std::string& format, const std::string& where) {
  QuantScheme s;
  const std::string type = io::find_string(w, "type", where).value_or("int");
  const bool floats = type == "float";
  if (format == "pack-quantized" && !floats)
    s.codes = Codes::packed;
  else if ((format == "int-quantized" || format == "naive-quantized") && !floats)
    s.codes = Codes::int8;
  else if ((format == "float-quantized" || format == "naive-quantized") && floats)
    s.codes = Codes::fp8;
  else
    throw unsupported(where, "weights of type {} are in format {}", io::quote(type),
                      io::quote(format));
  const auto bits = io::find_int(w, "num_bits", where).value_or(8);
  s.bits = s.codes == Codes::packed ? bits_of(bits, {4, 8}, where) : bits_of(bits, {8}, where);
  s.symmetric = floats || io::find_bool(w, "symmetric", where).value_or(true);
  const auto group = io::find_int(w, "group_size", where);
  const std::string by = io::find_string(w, "strategy", where)
                             .value_or(!group       ? "tensor"
                                       : *group > 0 ? "group"
                                                    : "channel");
  if (by == "group")
    s.inputs = group_of(group, where);
  else if (by == "tensor")
    s.outputs = 0;
  else if (by == "block" && floats && w.contains("block_structure"))
    read_block(w["block_structure"], where, s);
  else if (by != "channel")
    throw unsupported(where, "weights have scales by the strategy {}", io::quote(by));
  const auto order = w.find("actorder");
  if (order != w.end() && !order->is_null() && *order != "weight" && *order != "static" &&
      *order != false)
    throw unsupported(where, "weights are in act-order ('actorder' is {})", io::describe(*order));
  if (io::find_bool(w, "dynamic", where).value_or(false))
    throw unsupported(where, "weights have dynamic scales");
  return s;
}

Quantization read_compressed(const Json& j, const std::string& where) {
  Quantization q{.method = QuantMethod::compressed_tensors};
  for (const char* key : {"kv_cache_scheme", "transform_config"})
    if (!is_empty(j, key)) throw unsupported(where, "key '{}' is set", key);
  const Json* sparsity = io::find_object(j, "sparsity_config", where);
  if (sparsity != nullptr && !sparsity->empty() && sparsity->value("format", Json()) != "dense")
    throw unsupported(where, "key 'sparsity_config' is set");
  const std::string status =
      io::find_string(j, "quantization_status", where).value_or("compressed");
  // Published folders with compressed tensors often say "frozen"; the tensors decide.
  if (status != "compressed" && status != "frozen")
    throw unsupported(where, "key 'quantization_status' is {}, expected 'compressed' or 'frozen'",
                      io::quote(status));
  const std::string all = io::find_string(j, "format", where).value_or("");
  for (const auto& [name, group] : io::get_object(j, "config_groups", where).items()) {
    const std::string place = fmt::format("{}: {}", where, name);
    if (!group.is_object()) throw input_error(place, "expected an object");
    if (is_empty(group, "weights")) continue;
    if (!is_empty(group, "output_activations"))
      throw unsupported(place, "key 'output_activations' is set");
    QuantScheme s = read_weights(io::get_object(group, "weights", place),
                                 io::find_string(group, "format", place).value_or(all), place);
    add_names(group, "targets", place, s.targets);
    q.schemes.push_back(std::move(s));
    if (const Json* inputs = io::find_object(group, "input_activations", place))
      q.activations = fmt::format("{} bits", io::find_int(*inputs, "num_bits", place).value_or(8));
  }
  if (q.schemes.empty()) throw input_error(where, "key 'config_groups' has no group with weights");
  add_names(j, "ignore", where, q.plain);
  return q;
}

Quantization read_fp8(const Json& j, const std::string& where) {
  Quantization q{.method = QuantMethod::fp8, .activations = "fp8"};
  QuantScheme s{.codes = Codes::fp8, .bits = 8, .outputs = 0};
  for (const auto& [key, known] :
       {std::pair{"fmt", "e4m3"}, {"weight_fmt", "e4m3"}, {"scale_fmt", "float"}})
    if (const auto found = io::find_string(j, key, where); found && *found != known)
      throw unsupported(where, "key '{}' is {}, expected '{}'", key, io::quote(*found), known);
  if (!is_empty(j, "weight_block_size")) read_block(j["weight_block_size"], where, s);
  q.schemes.push_back(s);
  add_names(j, "modules_to_not_convert", where, q.plain);
  add_names(j, "ignored_layers", where, q.plain);
  return q;
}

Quantization read_awq(const Json& j, const std::string& where) {
  Quantization q{.method = QuantMethod::awq};
  const char* key = j.contains("version") ? "version" : "format";
  std::string version = io::find_string(j, key, where).value_or("gemm");
  std::ranges::transform(version, version.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  if (version != "gemm") throw unsupported(where, "AWQ is of version {}", io::quote(version));
  if (!io::find_bool(j, "zero_point", where).value_or(true))
    throw unsupported(where, "AWQ weights have no zeros ('zero_point' is false)");
  q.schemes.push_back(
      {.bits = bits_of(find_either(j, "bits", "w_bit", where), {4}, where),
       .symmetric = false,
       .inputs = group_of(find_either(j, "group_size", "q_group_size", where), where)});
  add_names(j, "modules_to_not_convert", where, q.plain);
  return q;
}

Quantization read_gptq(const Json& j, const std::string& where) {
  Quantization q{.method = QuantMethod::gptq};
  const auto marlin = [&](const char* key) { return io::find_bool(j, key, where).value_or(false); };
  const std::string format = io::find_string(j, "checkpoint_format", where).value_or("gptq");
  if (marlin("is_marlin_format") || (format != "gptq" && format != "gptq_v2"))
    throw unsupported(where, "GPTQ weights are in the format {}",
                      io::quote(format == "gptq" ? "marlin" : format));
  if (!is_empty(j, "dynamic"))
    throw unsupported(where, "GPTQ has other settings for some modules ('dynamic')");
  q.zeros_less_one = format == "gptq";
  q.schemes.push_back({.bits = bits_of(io::find_int(j, "bits", where), {4, 8}, where),
                       .symmetric = io::find_bool(j, "sym", where).value_or(false),
                       .inputs = group_of(io::find_int(j, "group_size", where), where)});
  return q;
}

struct Method {
  QuantMethod method;
  std::string_view key, name;
  Quantization (*read)(const Json&, const std::string& where);
};

/// By QuantMethod.
constexpr std::array kMethods = {Method{QuantMethod::compressed_tensors, "compressed-tensors",
                                        "compressed-tensors", read_compressed},
                                 Method{QuantMethod::fp8, "fp8", "fp8", read_fp8},
                                 Method{QuantMethod::awq, "awq", "AWQ", read_awq},
                                 Method{QuantMethod::gptq, "gptq", "GPTQ", read_gptq}};

/// Returns how a target or an exemption names a layer: 0 by its name, 1 by a pattern, 2 by its
/// class. 3: not at all.
int naming_of(const std::string& target, std::string_view name) {
  constexpr std::string_view kPattern = "re:";
  if (target == "Linear") return 2;
  if (!target.starts_with(kPattern)) return target == name ? 0 : 3;
  const std::regex pattern(target.substr(kPattern.size()));
  constexpr auto kFromStart = std::regex_constants::match_continuous;
  return std::regex_search(name.begin(), name.end(), pattern, kFromStart) ? 1 : 3;
}

/// errors   kind input: a pattern that is no regular expression
void check_names(const std::vector<std::string>& names, const std::string& where) {
  for (const std::string& name : names) try {
      naming_of(name, "");
    } catch (const std::regex_error&) {
      throw input_error(where, "{} is no regular expression that is supported", io::quote(name))
          .hint("write the names of the modules in its place");
    }
}

/// Takes the closer of two names of a module: files may put other words in front.
int naming_of(const std::string& target, std::string_view name, std::string_view stored) {
  return std::min(naming_of(target, name), naming_of(target, stored));
}

/// True where an entry of transformers' modules_to_not_convert names a layer: all of its name, or
/// whole words at its begin or end.
bool is_exempt(const std::string& entry, std::string_view name) {
  const auto begins = [&](std::string_view in) { return in.starts_with(entry + "."); };
  constexpr std::string_view kPrefix = "model.";
  return name == entry || name.ends_with("." + entry) || begins(name) ||
         (name.starts_with(kPrefix) && begins(name.substr(kPrefix.size())));
}

}  // namespace

bool is_group(int64_t inputs) {
  constexpr int64_t kUnit = 16;
  return inputs == kUnit || (inputs > 0 && inputs <= kMaxGroup && inputs % (2 * kUnit) == 0);
}

std::string_view method_name(QuantMethod method) {
  return kMethods[static_cast<size_t>(method)].name;
}

const QuantScheme* Quantization::scheme_of(std::string_view name, std::string_view stored) const {
  constexpr int kNever = 3;
  const bool by_target = method == QuantMethod::compressed_tensors;
  for (const std::string& entry : plain)
    if (by_target ? naming_of(entry, name, stored) < kNever : is_exempt(entry, name))
      return nullptr;
  if (!by_target) return &schemes.front();
  const QuantScheme* found = nullptr;
  int best = kNever;
  for (const QuantScheme& s : schemes)
    for (const std::string& target : s.targets)
      if (const int naming = naming_of(target, name, stored); naming < best) {
        best = naming;
        found = &s;
      }
  return found;
}

Quantization parse_quantization(const Json& section, const std::string& where) {
  const std::string name = io::find_string(section, kMethodKey, where).value_or("");
  std::vector<std::string_view> known;
  for (const Method& m : kMethods) {
    known.push_back(m.key);
    if (m.key != name) continue;
    const std::string place = where + ": quantization_config";
    Quantization q = m.read(section, place);
    if (q.method != QuantMethod::compressed_tensors) return q;
    check_names(q.plain, place);
    for (const QuantScheme& s : q.schemes) check_names(s.targets, place);
    return q;
  }
  const std::string found =
      name.empty() ? fmt::format("quantization_config has no key '{}'", kMethodKey)
                   : fmt::format("the weights are quantized by {}, which is not supported{}",
                                 io::quote(name), name == "mxfp4" ? " (mixture of experts)" : "");
  throw input_error(where, "{}", found)
      .hint(fmt::format("supported: {}; or {}", fmt::join(known, ", "), kOther));
}

std::optional<Quantization> load_quantization(const std::filesystem::path& folder) {
  const auto read = [](const std::filesystem::path& path) {
    return std::filesystem::exists(path)
               ? io::parse_json(io::read_regular_file(path, kMaxBytes), path.string())
               : Json::object();
  };
  const std::filesystem::path path = folder / "config.json";
  const Json config = read(path);
  const Json* section = nullptr;
  if (config.is_object()) {
    const Json* text = io::find_object(config, "text_config", path.string());
    for (const Json* j : {&config, text})
      if (j != nullptr && section == nullptr)
        section = io::find_object(*j, "quantization_config", path.string());
  }
  if (section != nullptr) return parse_quantization(*section, path.string());
  for (const auto& [name, method] :
       {std::pair{"quantize_config.json", "gptq"}, std::pair{"quant_config.json", "awq"}}) {
    const std::filesystem::path old = folder / name;
    if (!std::filesystem::exists(old)) continue;
    Json values = read(old);
    if (!values.is_object()) throw input_error(old.string(), "expected an object");
    if (is_empty(values, kMethodKey)) values[kMethodKey] = method;
    return parse_quantization(values, old.string());
  }
  return std::nullopt;
}

}  // namespace tandem::model
