#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "recipe/node.h"
#include "recipe/units.h"

namespace tandem::recipe {

/// A model: a folder, `synthetic:NAME`, or a bare name that is looked up in the model folders.
struct ModelName {
  std::string value;
  operator const std::string&() const { return value; }
};

/// A file, or the word `auto`: the tool then works out what it would hold.
struct AutoPath {
  std::filesystem::path path;  // empty where it is not named
  bool automatic = false;
  bool empty() const { return path.empty() && !automatic; }
};

using Folders = std::vector<std::filesystem::path>;

/// Whether a path as a recipe spells it is expanded when it is read: `~` at its beginning, and
/// every `${env:NAME}`.
bool is_expanded(std::string_view spelling);

// One overload set a scalar type: reading (returns the problem, or empty), YAML text, name of the
// type, JSON. A quoted scalar is always text; numbers and booleans are never coerced from a quoted
// scalar.
template <class T>
concept Enum = std::is_enum_v<T>;

std::string read_scalar(const Node& node, bool& out);
std::string read_scalar(const Node& node, int& out);
std::string read_scalar(const Node& node, int64_t& out);
std::string read_scalar(const Node& node, uint64_t& out);
std::string read_scalar(const Node& node, double& out);
std::string read_scalar(const Node& node, std::string& out);
std::string read_scalar(const Node& node, std::filesystem::path& out);
std::string read_scalar(const Node& node, AutoPath& out);
std::string read_scalar(const Node& node, ByteSize& out);
std::string read_scalar(const Node& node, TokenCount& out);
std::string read_scalar(const Node& node, Fraction& out);
std::string read_scalar(const Node& node, Duration& out);

std::string yaml_text(bool value);
std::string yaml_text(int64_t value);
std::string yaml_text(uint64_t value);
std::string yaml_text(double value);
std::string yaml_text(const std::string& value);
inline std::string yaml_text(int value) { return yaml_text(int64_t{value}); }
inline std::string yaml_text(const std::filesystem::path& value) {
  return yaml_text(value.string());
}
inline std::string yaml_text(const ModelName& value) { return yaml_text(value.value); }
inline std::string yaml_text(const AutoPath& value) {
  return value.automatic ? "auto" : yaml_text(value.path);
}
inline std::string yaml_text(ByteSize value) { return units_text(value); }
inline std::string yaml_text(TokenCount value) { return units_text(value); }
inline std::string yaml_text(Fraction value) { return units_text(value); }
inline std::string yaml_text(Duration value) { return units_text(value); }

inline std::string type_name(bool) { return "bool"; }
inline std::string type_name(int) { return "int"; }
inline std::string type_name(int64_t) { return "int"; }
inline std::string type_name(uint64_t) { return "int"; }
inline std::string type_name(double) { return "number"; }
inline std::string type_name(const std::string&) { return "text"; }
inline std::string type_name(const std::filesystem::path&) { return "path"; }
inline std::string type_name(const ModelName&) { return "model"; }
inline std::string type_name(const AutoPath&) { return "path|auto"; }
inline std::string type_name(ByteSize) { return "bytes"; }
inline std::string type_name(TokenCount) { return "count"; }
inline std::string type_name(Fraction) { return "fraction"; }
inline std::string type_name(Duration) { return "time"; }

nlohmann::json json_of(bool value);
nlohmann::json json_of(int value);
nlohmann::json json_of(int64_t value);
nlohmann::json json_of(uint64_t value);
nlohmann::json json_of(double value);
nlohmann::json json_of(const std::string& value);
nlohmann::json json_of(const std::filesystem::path& value);
nlohmann::json json_of(const ModelName& value);
nlohmann::json json_of(const AutoPath& value);
nlohmann::json json_of(ByteSize value);
nlohmann::json json_of(TokenCount value);
nlohmann::json json_of(Fraction value);
nlohmann::json json_of(Duration value);

/// models   where bare names are looked up, first match wins
std::string read_model(const Node& node, const Folders& models, ModelName& out);

/// Enums are read and written by name: next to `enum class Kind { a, b };` stands
/// `constexpr std::array<std::string_view, 2> enum_names(Kind) { return {"a", "b"}; }`.
std::string read_enum(const Node& node, const std::string_view* names, size_t n, size_t& out);

template <Enum T>
std::string read_scalar(const Node& node, T& out) {
  constexpr auto names = enum_names(T{});
  size_t index = 0;
  std::string problem = read_enum(node, names.data(), names.size(), index);
  if (problem.empty()) out = static_cast<T>(index);
  return problem;
}
template <Enum T>
std::string yaml_text(T value) {
  return std::string(enum_names(value)[static_cast<size_t>(value)]);
}
template <Enum T>
std::string type_name(T value) {
  std::string text;
  for (std::string_view name : enum_names(value)) text.append(text.empty() ? "" : "|").append(name);
  return text;
}

}  // namespace tandem::recipe
