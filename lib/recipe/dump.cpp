#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "recipe/fields.h"

namespace tandem::recipe {
namespace {

struct Line {
  std::string text, comment;
};

void dump_section(const Field& section, const Node* node, bool with_origin, Shown shown,
                  size_t depth, std::vector<Line>& lines) {
  for (const Field& field : section.fields) {
    if (!section.has(field)) continue;
    const Node* value = node != nullptr ? node->find(field.name) : nullptr;
    std::string text = std::string(2 * depth, ' ').append(field.name).append(":");
    if (field.is_section()) {
      lines.push_back({text, ""});
      const size_t n = lines.size();
      dump_section(field, value, with_origin, shown, depth + 1, lines);
      if (shown == Shown::written && lines.size() == n) lines.pop_back();
      continue;
    }
    const bool written = value != nullptr && value->kind != Node::Kind::null;
    const bool lacks = with_origin && !written && field.limits.required;
    if (shown == Shown::written && !written && !lacks) continue;
    const std::string origin = written ? value->origin.text() : lacks ? "required" : "default";
    lines.push_back(
        {lacks ? text : text + " " + field.value->yaml(), with_origin ? "# " + origin : ""});
  }
}

/// Last component of a path, also of "a/b/".
std::string leaf(const std::string& text) {
  std::filesystem::path path(text);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

nlohmann::json section_json(const Field& section, bool for_hash) {
  auto object = nlohmann::json::object();
  for (const Field& field : section.fields) {
    if (!section.has(field)) continue;
    const std::string key(field.name);
    if (field.is_section()) {
      object[key] = section_json(field, for_hash);
      continue;
    }
    nlohmann::json value = field.value->json();
    if (value.is_null()) continue;
    const std::string type = field.value->type();
    if (const auto path = field.value->path(); for_hash && path) value = leaf(path->string());
    object[key] = std::move(value);
  }
  return object;
}

/// Removes settings of policy hybrid where another one reads, also in items of lists.
void drop_unread(nlohmann::json& json) {
  if (json.is_structured())
    for (nlohmann::json& value : json) drop_unread(value);
  if (json.is_object() && json.contains("kind") && json["kind"] != "hybrid") json.erase("hybrid");
}

/// Removes sampling settings that say what null says.
void drop_plain(nlohmann::json& sampling) {
  static const nlohmann::json plain = {
      {"temperature", 0}, {"top_k", 0}, {"top_p", 1}, {"min_p", 0}, {"repetition_penalty", 1}};
  for (const auto& [key, value] : plain.items())
    if (sampling.contains(key) && sampling[key] == value) sampling.erase(key);
}

void add_keys(const Field& field, const std::string& name, std::vector<Key>& keys) {
  for (const Field& inner : field.fields)
    add_keys(inner, fmt::format("{}.{}", name, inner.name), keys);
  if (!field.is_section()) keys.push_back({name, &field});
}

}  // namespace

std::string flow_text(const Field& section) {
  std::string text;
  for (const Field& field : section.fields)
    if (section.has(field))
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", field.name,
                          field.is_section() ? flow_text(field) : field.value->yaml());
  return "{" + text + "}";
}

std::string dump_yaml(const Field& root, const Node* tree, Shown shown) {
  std::vector<Line> lines;
  dump_section(root, tree, tree != nullptr, shown, 0, lines);
  size_t width = 0;
  for (const Line& line : lines)
    if (!line.comment.empty()) width = std::max(width, line.text.size());
  std::string text;
  for (const Line& line : lines)
    text += line.comment.empty() ? line.text + '\n'
                                 : fmt::format("{:<{}}  {}\n", line.text, width, line.comment);
  return text;
}

nlohmann::json to_json(const Field& root) { return section_json(root, false); }

std::string recipe_hash(const Field& root) {
  nlohmann::json canonical = section_json(root, true);
  canonical.erase("output");
  drop_unread(canonical);
  if (canonical.contains("sampling") && canonical["sampling"].value("from", "") == "recipe")
    drop_plain(canonical["sampling"]);
  if (canonical.contains("run")) {
    for (const char* key :
         {"threads", "device", "plan_for", "rank", "world_size", "rendezvous", "timeout"})
      canonical["run"].erase(key);
  }
  return sha256_hex(canonical.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::vector<Key> keys_of(const Field& root, std::string_view section) {
  std::vector<Key> keys;
  for (const Field& field : root.fields)
    if (section.empty() || field.name == section) add_keys(field, std::string(field.name), keys);
  return keys;
}

}  // namespace tandem::recipe
