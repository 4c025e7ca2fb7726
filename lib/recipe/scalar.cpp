#include "recipe/scalar.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "recipe/problems.h"

namespace tandem::recipe {
namespace {

namespace fs = std::filesystem;

std::string mismatch(std::string_view expected, const Node& node) {
  return fmt::format("expected {}, found {}", expected, node.described());
}

template <class T>
std::string read_plain(const Node& node, T& out) {
  const bool plain = node.kind == Node::Kind::scalar && !node.quoted;
  const std::string expected = parse_units(plain ? node.scalar : std::string_view{}, out);
  return expected.empty() ? std::string{} : mismatch(expected, node);
}

constexpr std::string_view kOpen = "${env:";

bool starts_at_home(std::string_view text) { return text == "~" || text.starts_with("~/"); }

/// Expands what is_expanded names; returns the problem.
std::string expand(std::string& text) {
  if (starts_at_home(text)) {
    const char* home = std::getenv("HOME");
    if (home == nullptr) return "'~' needs the environment variable HOME, which is not set";
    text.replace(0, 1, home);
  }
  for (size_t at = text.find(kOpen); at != std::string::npos; at = text.find(kOpen, at)) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos)
      return fmt::format("'{}' lacks its closing brace", text.substr(at));
    const std::string name = text.substr(at + kOpen.size(), end - at - kOpen.size());
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return fmt::format("the environment variable '{}' is not set", name);
    text.replace(at, end + 1 - at, value);
    at += std::string_view(value).size();
  }
  return {};
}

std::string in_folder(const fs::path& folder, const std::string& path) {
  return (folder / path).lexically_normal().string();
}

}  // namespace

bool is_expanded(std::string_view spelling) {
  return starts_at_home(spelling) || spelling.find(kOpen) != std::string_view::npos;
}

std::string read_scalar(const Node& node, bool& out) {
  const bool plain = node.kind == Node::Kind::scalar && !node.quoted;
  if (!plain || (node.scalar != "true" && node.scalar != "false"))
    return mismatch("true or false", node);
  out = node.scalar == "true";
  return {};
}

std::string read_scalar(const Node& node, int64_t& out) { return read_plain(node, out); }
std::string read_scalar(const Node& node, double& out) { return read_plain(node, out); }
std::string read_scalar(const Node& node, ByteSize& out) { return read_plain(node, out); }
std::string read_scalar(const Node& node, TokenCount& out) { return read_plain(node, out); }
std::string read_scalar(const Node& node, Fraction& out) { return read_plain(node, out); }
std::string read_scalar(const Node& node, Duration& out) { return read_plain(node, out); }

std::string read_scalar(const Node& node, int& out) {
  int64_t wide = 0;
  if (std::string problem = read_plain(node, wide); !problem.empty()) return problem;
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max())
    return mismatch("an integer of 32 bits", node);
  out = static_cast<int>(wide);
  return {};
}

std::string read_scalar(const Node& node, uint64_t& out) {
  int64_t wide = 0;
  if (std::string problem = read_plain(node, wide); !problem.empty()) return problem;
  if (wide < 0) return mismatch("an integer of at least 0", node);
  out = static_cast<uint64_t>(wide);
  return {};
}

std::string read_scalar(const Node& node, std::string& out) {
  if (node.kind != Node::Kind::scalar) return mismatch("text", node);
  out = node.scalar;
  return {};
}

std::string read_scalar(const Node& node, fs::path& out) {
  if (node.kind != Node::Kind::scalar) return mismatch("a path", node);
  std::string text = node.scalar;
  if (std::string problem = expand(text); !problem.empty()) return problem;
  out = text.empty() || text == "-" ? text : in_folder(node.origin.folder, text);
  return {};
}

std::string read_scalar(const Node& node, AutoPath& out) {
  out = {.path = {}, .automatic = node.kind == Node::Kind::scalar && node.scalar == "auto"};
  return out.automatic ? std::string() : read_scalar(node, out.path);
}

std::string read_model(const Node& node, const Folders& models, ModelName& out) {
  constexpr std::string_view kSynthetic = "synthetic:";
  if (node.kind != Node::Kind::scalar) return mismatch("a model folder or name", node);
  std::string text = node.scalar;
  if (std::string problem = expand(text); !problem.empty()) return problem;
  const fs::path& folder = node.origin.folder;
  if (text.starts_with(kSynthetic)) {
    const std::string shape = text.substr(kSynthetic.size());
    const bool is_file = shape.find('/') != std::string::npos || shape.ends_with(".json");
    std::string file = is_file ? in_folder(folder, shape) : shape;
    // NAME/../x is a path, and stays one: no shape is called so.
    if (is_file && file.find('/') == std::string::npos) file = "./" + file;
    out.value = std::string(kSynthetic) + file;
    return {};
  }
  std::error_code ignored;
  if (text.find('/') != std::string::npos || fs::exists(folder / text, ignored)) {
    out.value = text.empty() ? text : in_folder(folder, text);
    return {};
  }
  for (const fs::path& candidate : models)
    if (!text.empty() && fs::is_directory(candidate / text, ignored)) {
      out.value = (candidate / text).string();
      return {};
    }
  out.value = text;
  return {};
}

std::string read_enum(const Node& node, const std::string_view* names, size_t n, size_t& out) {
  const std::vector<std::string_view> list(names, names + n);
  const std::string near =
      node.kind == Node::Kind::scalar ? did_you_mean(node.scalar, list) : std::string();
  if (node.kind == Node::Kind::scalar)
    for (size_t i = 0; i < n; ++i)
      if (node.scalar == names[i]) {
        out = i;
        return {};
      }
  return mismatch(fmt::format("{}{}", n > 1 ? "one of " : "", fmt::join(list, ", ")), node) +
         (near.empty() ? "" : "; " + near);
}

std::string yaml_text(bool value) { return value ? "true" : "false"; }
std::string yaml_text(int64_t value) { return fmt::format("{}", value); }
std::string yaml_text(uint64_t value) { return fmt::format("{}", value); }
std::string yaml_text(double value) { return fmt::format("{}", value); }

std::string yaml_text(const std::string& value) {
  // Plain only where no reader could take it for anything else; JSON strings are YAML strings.
  bool plain = !value.empty() && (std::isalnum(static_cast<unsigned char>(value[0])) != 0 ||
                                  value[0] == '/' || value[0] == '_');
  for (const char c : value)
    plain = plain && (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                      std::string_view("/_.-").find(c) != std::string_view::npos);
  for (std::string_view word : {"null", "Null", "NULL", "true", "false"})
    plain = plain && value != word;
  return plain ? value : nlohmann::json(value).dump();
}

nlohmann::json json_of(bool value) { return value; }
nlohmann::json json_of(int value) { return value; }
nlohmann::json json_of(int64_t value) { return value; }
nlohmann::json json_of(uint64_t value) { return value; }
nlohmann::json json_of(double value) { return value; }
nlohmann::json json_of(const std::string& value) { return value; }
nlohmann::json json_of(const fs::path& value) { return value.string(); }
nlohmann::json json_of(const ModelName& value) { return value.value; }
nlohmann::json json_of(const AutoPath& value) {
  return value.automatic ? "auto" : value.path.string();
}
nlohmann::json json_of(ByteSize value) { return value.value; }
nlohmann::json json_of(TokenCount value) { return value.value; }
nlohmann::json json_of(Fraction value) { return value.value; }
nlohmann::json json_of(Duration value) { return value.seconds; }

}  // namespace tandem::recipe
