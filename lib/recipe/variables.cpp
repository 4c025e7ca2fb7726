#include "recipe/variables.h"

#include <nlohmann/json.hpp>

namespace tandem::recipe {
namespace {

using Json = nlohmann::ordered_json;

/// Scalars in quotes are text; others are what YAML's core schema says.
Json json_of(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::scalar: {
      if (node.quoted) return node.scalar;
      if (node.scalar == "True" || node.scalar == "TRUE") return true;
      if (node.scalar == "False" || node.scalar == "FALSE") return false;
      const Json value = Json::parse(node.scalar, nullptr, false);
      return value.is_boolean() || value.is_number() || value.is_null() ? value : Json(node.scalar);
    }
    case Node::Kind::list: {
      Json list = Json::array();
      for (const Node& item : node.items) list.push_back(json_of(item));
      return list;
    }
    case Node::Kind::map: {
      Json map = Json::object();
      for (const Node::Entry& entry : node.entries) map[entry.key] = json_of(entry.value);
      return map;
    }
  }
  return nullptr;
}

std::string value_text(const Node& node) {
  std::string text;
  if (node.kind == Node::Kind::list) {
    for (const Node& item : node.items) text += (text.empty() ? "" : ", ") + value_text(item);
    return "[" + text + "]";
  }
  if (node.kind == Node::Kind::map) {
    for (const Node::Entry& entry : node.entries)
      text += (text.empty() ? "" : ", ") + entry.key + ": " + value_text(entry.value);
    return "{" + text + "}";
  }
  const Json value = json_of(node);
  return value.is_string() ? yaml_text(value.get<std::string>()) : value.dump();
}

}  // namespace

std::string read_item(const Node& node, const Folders&, Variables& out) {
  if (node.kind != Node::Kind::map)
    return "expected names with values such as {reasoning_effort: high}, found " + node.described();
  out.map = node;
  return {};
}

std::string yaml_text(const Variables& value) {
  return value.map.kind == Node::Kind::map ? value_text(value.map) : "{}";
}

nlohmann::ordered_json ordered_json_of(const Variables& value) {
  return value.map.kind == Node::Kind::map ? json_of(value.map) : Json::object();
}

nlohmann::json json_of(const Variables& value) { return nlohmann::json(ordered_json_of(value)); }

}  // namespace tandem::recipe
