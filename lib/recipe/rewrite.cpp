#include "recipe/rewrite.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "recipe/load.h"
#include "recipe/scalar.h"

namespace tandem::recipe {
namespace {

/// The key that a line begins, if it stands at the line's start.
std::string key_of(const std::string& line) {
  const size_t colon = line.find(':');
  const bool begins = !line.empty() && std::isalpha(static_cast<unsigned char>(line[0])) != 0;
  return begins && colon != std::string::npos ? line.substr(0, colon) : std::string();
}

/// A section with a line for each of its keys, and for each item of a list of maps.
std::string section_text(const Node::Entry& section) {
  if (section.value.kind != Node::Kind::map)
    return section.key + ": " + flow_text(section.value) + "\n";
  std::string text = section.key + ":\n";
  for (const auto& [key, origin, value, optional] : section.value.entries) {
    const bool has_maps = value.kind == Node::Kind::list && !value.items.empty() &&
                          value.items.front().kind == Node::Kind::map;
    text += "  " + key + ":" + (has_maps ? "" : " " + flow_text(value)) + "\n";
    for (size_t i = 0; has_maps && i < value.items.size(); ++i)
      text += "    - " + flow_text(value.items[i]) + "\n";
  }
  return text;
}

}  // namespace

std::string flow_text(const Node& node) {
  std::string text;
  switch (node.kind) {
    case Node::Kind::null:
      return "null";
    case Node::Kind::scalar:
      return node.quoted ? nlohmann::json(node.scalar).dump() : node.scalar;
    case Node::Kind::list:
      for (const Node& item : node.items) text += (text.empty() ? "" : ", ") + flow_text(item);
      return "[" + text + "]";
    case Node::Kind::map:
      for (const Node::Entry& e : node.entries)
        text += (text.empty() ? "" : ", ") + yaml_text(e.key) + ": " + flow_text(e.value);
  }
  return "{" + text + "}";
}

std::string rewrite_sections(const std::string& text, const Node& before, const Node& after) {
  const auto is_changed = [&](const std::string& key) {
    const Node *old = before.find(key), *now = after.find(key);
    return old != nullptr && (now == nullptr || flow_text(*old) != flow_text(*now));
  };
  std::string fresh, written;
  for (const Node::Entry& entry : after.entries)
    if (before.find(entry.key) == nullptr || is_changed(entry.key)) fresh += section_text(entry);
  std::istringstream lines(text);
  bool is_left_out = false;
  for (std::string line; std::getline(lines, line);) {
    if (const std::string key = key_of(line); !key.empty()) is_left_out = is_changed(key);
    if (line.starts_with('#')) is_left_out = false;
    if (is_left_out) written += std::exchange(fresh, {});
    if (!is_left_out) written += line + "\n";
  }
  Node read = parse_yaml(written, {});
  std::erase_if(read.entries, [](const Node::Entry& e) {
    return e.key == "kind" || e.key == "version" || e.key == "base";
  });
  for (const Node::Entry& entry : after.entries)
    if (const Node* found = read.find(entry.key);
        found == nullptr || flow_text(*found) != flow_text(entry.value))
      throw recipe_error(entry.key, "cannot be rewritten: its sections share lines")
          .hint("begin each section on another line");
  return written;
}

std::string with_version(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  const std::string version = fmt::format("version: {}", kSchemaVersion);
  const auto old = std::ranges::find(lines, "version", key_of);
  const auto kind = std::ranges::find(lines, "kind", key_of);
  if (old != lines.end())
    *old = version + old->substr(std::min(old->find(" #"), old->size()));
  else if (kind != lines.end())
    lines.insert(kind + 1, version);
  else  // after the comment that it begins with
    lines.insert(std::ranges::find_if(lines, [](const auto& l) { return !l.starts_with('#'); }),
                 version);
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace tandem::recipe
